"""scikit-learn estimators: thin shells that take and return arrays, frames or tensors."""

from .kmeans import EntMeans, print_step
from .rbf_network import RBFNetworkClassifier, RBFNetworkRegressor

__all__ = ["EntMeans", "RBFNetworkClassifier", "RBFNetworkRegressor", "print_step"]
