"""The figures of the report, each drawn from the record of an experiment."""
