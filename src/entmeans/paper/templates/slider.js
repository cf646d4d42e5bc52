"use strict";
(() => {
  const data = JSON.parse(document.getElementById("frames").textContent);
  const at = (id) => document.getElementById(id);
  const geometry = at("geometry"), mapping = at("mapping"), slider = at("temperature"), play = at("play");
  const INK = "#1f2933", MUTED = "#56616d", FAINT = "#dfe4e9";
  const pictures = new Map();

  const fill = (select, names) => names.forEach((name) => select.add(new Option(name, name)));
  fill(geometry, Object.keys(data.geometries));
  fill(mapping, Object.keys(Object.values(data.geometries)[0]));

  const chosen = () => data.geometries[geometry.value][mapping.value];
  const digits = (x) => (x === 0 ? "0" : x.toPrecision(3));
  // 100 % means all: rounded down, as everywhere in the package
  const percent = (share) => `${Math.floor(100 * share)} %`;

  function picture(uri) {
    if (!pictures.has(uri)) {
      const image = new Image();
      image.onload = draw;
      image.src = uri;
      pictures.set(uri, image);
    }
    return pictures.get(uri);
  }

  function dot(context, [x, y], radius, color, ring) {
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = color;
    context.fill();
    if (ring) {
      context.lineWidth = 5;
      context.strokeStyle = ring;
      context.stroke();
    }
  }

  function line(context, places, color, width) {
    context.beginPath();
    places.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.lineWidth = width;
    context.strokeStyle = color;
    context.stroke();
  }

  function drawPlane(set, index) {
    const canvas = at("plane"), context = canvas.getContext("2d"), side = canvas.width;
    const scaled = ([x, y]) => [x * side, y * side];
    const image = picture(set.frames[index].picture);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    if (image.complete) context.drawImage(image, 0, 0, side, side);
    context.globalAlpha = 0.55;
    set.points.forEach((point) => dot(context, scaled(point), 5, INK));
    context.globalAlpha = 1;
    data.colors.forEach((color, j) => {
      const way = set.frames.slice(0, index + 1).map((frame) => scaled(frame.centers[j]));
      line(context, way, "#ffffff", 9);
      line(context, way, INK, 3);
    });
    data.colors.forEach((color, j) => dot(context, scaled(set.frames[index].centers[j]), 17, color, "#ffffff"));
  }

  function drawCourse(set, index) {
    const canvas = at("course"), context = canvas.getContext("2d");
    const { width, height } = canvas, left = 70, right = width - 20, top = 40, bottom = height - 45;
    const frames = set.frames, n = frames.length;
    const low = Math.min(...frames.map((frame) => frame.free_energy)), high = Math.max(...frames.map((frame) => frame.inertia));
    const x = (i) => left + ((right - left) * i) / (n - 1);
    const y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low || 1);
    context.clearRect(0, 0, width, height);
    context.font = "22px system-ui, sans-serif";
    [low, high].forEach((value) => {
      line(context, [[left, y(value)], [right, y(value)]], FAINT, 2);
      context.fillStyle = MUTED;
      context.fillText(digits(value), 0, y(value) + 8);
    });
    line(context, [[x(index), top], [x(index), bottom]], INK, 3);
    line(context, frames.map((frame, i) => [x(i), y(frame.inertia)]), "#ee8a3c", 5);
    context.setLineDash([14, 8]);
    line(context, frames.map((frame, i) => [x(i), y(frame.free_energy)]), "#3b75af", 5);
    context.setLineDash([]);
    context.fillStyle = "#b05a10";
    context.fillText("inertia", left, 24);
    context.fillStyle = "#3b75af";
    context.fillText("free energy (dashed)", left + 110, 24);
    context.fillStyle = MUTED;
    context.fillText("temperature falls, step by step", left, height - 10);
    const hardening = frames.findIndex((frame) => frame.temperature === set.hardening_temperature);
    if (hardening >= 0) context.fillText("T*", x(hardening) - 10, height - 10);
  }

  function draw() {
    const set = chosen(), index = Number(slider.value), frame = set.frames[index];
    drawPlane(set, index);
    drawCourse(set, index);
    const hard = frame.temperature <= set.hardening_temperature;
    at("readout-temperature").textContent =
      digits(frame.temperature) + (hard && frame.temperature > 0 ? " = T*" : "");
    at("readout-free-energy").textContent = digits(frame.free_energy);
    at("readout-inertia").textContent = digits(frame.inertia);
    at("readout-hard").textContent = percent(frame.hard);
    at("bar").style.width = `${100 * frame.hard}%`;
    at("state").textContent = frame.temperature === 0 ? "T = 0: K-means." : hard ? "At T*: exactly K-means."
      : mapping.value === "softmax" ? "Soft. Softmax never becomes exactly hard." : "Soft.";
    slider.setAttribute("aria-valuetext", `temperature ${digits(frame.temperature)}`);
  }

  function choose() {
    const set = chosen(), share = Number(slider.value) / (Number(slider.max) || 1);
    slider.max = set.frames.length - 1;
    slider.value = Math.round(share * (set.frames.length - 1));
    set.frames.forEach((frame) => picture(frame.picture));
    draw();
  }

  let timer = null;
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "Stop";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      draw();
      if (slider.value === slider.max) stop();
    }, 180);
  });
  slider.addEventListener("input", () => { stop(); draw(); });
  geometry.addEventListener("change", choose);
  mapping.addEventListener("change", choose);
  slider.value = 0;
  choose();
})();
