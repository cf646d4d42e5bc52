"use strict";
(() => {
  const data = JSON.parse(document.getElementById("frames").textContent);
  const at = (id) => document.getElementById(id);
  const slider = at("temperature"), play = at("play"), star = at("star");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const INK = "{{ colors.ink }}", MUTED = "#56616d", FAINT = "#d3dae0";
  const BLUE = "{{ colors.palette[0] }}", ORANGE = "{{ colors.palette[1] }}", RUST = "#b05a10"; // orange for text
  const pictures = new Map();
  let shown = 0; // the frame on the screen, between two frames while it moves
  let last = null; // when it was drawn, while it moves
  let timer = null; // of the play button
  let temperature = Infinity; // of the frame that the readouts describe

  const selected = (name) => document.querySelector(`input[name=${name}]:checked`).value;
  const chosen = () => data.geometries[selected("geometry")][selected("mapping")];
  const target = () => Number(slider.value);
  const digits = (x) => (x === 0 ? "0" : Math.abs(x) < 1e-4 ? x.toExponential(1) : String(Number(x.toPrecision(3))));
  const percent = (share) => `${Math.floor(100 * share)} %`; // rounded down, so that 100 % means all
  const mix = (a, b, share) => a + (b - a) * share;

  function picture(uri) {
    if (!pictures.has(uri)) {
      const image = new Image();
      image.onload = () => { if (last === null) draw(); };
      image.src = uri;
      pictures.set(uri, image);
    }
    return pictures.get(uri);
  }

  // A canvas in pixels of the page, as sharp as the screen.
  function canvas(id) {
    const element = at(id), context = element.getContext("2d"), ratio = devicePixelRatio || 1;
    const width = element.clientWidth, height = element.clientHeight;
    if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
      element.width = Math.round(width * ratio);
      element.height = Math.round(height * ratio);
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.lineJoin = context.lineCap = "round";
    return { context, width, height };
  }

  function dot(context, [x, y], radius, fill, stroke, width) {
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = fill;
    context.fill();
    if (stroke) {
      context.lineWidth = width;
      context.strokeStyle = stroke;
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

  // The walls between cells: of the line on which two centers are equally near, what no third is nearer to.
  function walls(centers) {
    const found = [];
    for (let i = 0; i < centers.length; i++) for (let j = 0; j < i; j++) {
      const [a, b] = [centers[i], centers[j]];
      const middle = [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2], along = [a[1] - b[1], b[0] - a[0]];
      const length = Math.hypot(...along);
      if (length < 1e-3) continue;
      let low = -2 / length, high = 2 / length;
      centers.forEach((c, k) => {
        if (k === i || k === j) return;
        // |p - a|² <= |p - c|² at p = middle + s along is slope s <= room
        const toward = [c[0] - a[0], c[1] - a[1]];
        const slope = toward[0] * along[0] + toward[1] * along[1];
        const room = (c[0] ** 2 + c[1] ** 2 - a[0] ** 2 - a[1] ** 2) / 2 - toward[0] * middle[0] - toward[1] * middle[1];
        if (slope > 0) high = Math.min(high, room / slope);
        else if (slope < 0) low = Math.max(low, room / slope);
        else if (room < 0) high = -Infinity;
      });
      if (low < high) found.push([low, high].map((s) => [middle[0] + s * along[0], middle[1] + s * along[1]]));
    }
    return found;
  }

  function drawPlane(set) {
    const { context, width: side } = canvas("plane"), unit = side / 480;
    const scaled = ([x, y]) => [x * side, y * side];
    const index = Math.floor(shown), share = shown - index, now = set.frames[index], next = set.frames[index + 1] || now;
    const centers = now.centers.map(([x, y], j) => [mix(x, next.centers[j][0], share), mix(y, next.centers[j][1], share)]);
    context.imageSmoothingQuality = "high";
    for (const [frame, opacity] of [[now, 1], [next, share]]) {
      const image = picture(frame.picture);
      context.globalAlpha = opacity;
      if (opacity > 0 && image.complete) context.drawImage(image, 0, 0, side, side);
    }
    context.globalAlpha = mix(now.hard, next.hard, share);
    walls(centers).forEach((wall) => line(context, wall.map(scaled), "#ffffff", 2.5 * unit));
    context.globalAlpha = 0.7;
    const hard = set.frames[Math.round(shown)].hard_points;
    set.points.forEach((point, i) => {
      if (hard[i] === "1") dot(context, scaled(point), 2.4 * unit, INK);
      else dot(context, scaled(point), 2.4 * unit, "#ffffff", INK, 1.1 * unit);
    });
    context.globalAlpha = 1;
    centers.forEach((center, j) => {
      const way = [...set.frames.slice(0, index + 1).map((frame) => frame.centers[j]), center].map(scaled);
      line(context, way, "#ffffff", 4.5 * unit);
      line(context, way, INK, 1.8 * unit);
    });
    centers.forEach((center, j) => {
      dot(context, scaled(center), 9 * unit, data.colors[j], "#ffffff", 3 * unit);
      dot(context, scaled(center), 11 * unit, "#0000", INK, 1.2 * unit);
    });
  }

  function drawCourse(set) {
    const { context, width, height } = canvas("course"), frames = set.frames, n = frames.length;
    const left = 46, right = width - 8, gap = 26; // between the lowest T and 0
    const [hot, cold] = [frames[0].temperature, frames[n - 2].temperature].map(Math.log10);
    const across = (t) => (t > 0 ? mix(left, right - gap, (hot - Math.log10(t)) / (hot - cold)) : right);
    const x = (i) => across(frames[i].temperature);
    const values = frames.flatMap((frame) => [frame.free_energy, frame.inertia]);
    const low = Math.min(...values), high = Math.max(...values);
    const scaled = (value) => (value - low) / (high - low || 1);
    const energies = { top: 24, bottom: height * 0.56 }, hardness = { top: height * 0.56 + 38, bottom: height - 36 };
    const up = (box, share) => mix(box.bottom, box.top, share);
    const text = (words, place, y, color, align, weight = "") => {
      context.font = `${weight} 12.5px system-ui, sans-serif`;
      context.textAlign = align;
      context.fillStyle = color;
      context.fillText(words, place, y);
    };
    const curves = [
      { box: energies, share: (frame) => scaled(frame.inertia), color: ORANGE, dash: [] },
      { box: energies, share: (frame) => scaled(frame.free_energy), color: BLUE, dash: [7, 6] },
      { box: hardness, share: (frame) => frame.hard, color: INK, dash: [] },
    ];

    const zero = scaled(0) > 0.15 && scaled(0) < 0.85 ? [[scaled(0), "0"]] : [];
    for (const [box, share, words] of [
      ...[[1, digits(high)], [0, digits(low)], ...zero].map((mark) => [energies, ...mark]),
      ...[[1, "100 %"], [0, "0"]].map((mark) => [hardness, ...mark]),
    ]) {
      line(context, [[left, up(box, share)], [right, up(box, share)]], FAINT, 1);
      text(words, left - 7, up(box, share) + 4, MUTED, "right");
    }
    const starAt = set.hardening_frame === null ? -Infinity : across(set.hardening_temperature);
    context.setLineDash([3, 4]);
    if (starAt > 0) line(context, [[starAt, energies.top], [starAt, hardness.bottom]], MUTED, 1.2);
    if (starAt > 0) text("T*", starAt, hardness.bottom + 15, INK, "center", "600");
    for (let power = Math.floor(hot); power >= cold; power--) {
      const place = across(10 ** power);
      if (Math.abs(place - starAt) > 28) text(digits(10 ** power), place, hardness.bottom + 15, MUTED, "center");
    }
    text("0", right, hardness.bottom + 15, MUTED, "right");
    text("temperature (log scale, then 0)", (left + right) / 2, height - 4, MUTED, "center");
    text("inertia", left, 13, RUST, "left", "600");
    text("free energy (dashed)", left + 58, 13, BLUE, "left", "600");
    text("exactly hard points", left, hardness.top - 11, INK, "left", "600");

    for (const { box, share, color, dash } of curves) {
      const places = frames.map((frame, i) => [x(i), up(box, share(frame))]);
      const jumps = Math.abs(share(frames[n - 1]) - share(frames[n - 2])) > 0.5; // at T = 0, to a dot of its own
      context.setLineDash(dash);
      line(context, jumps ? places.slice(0, -1) : places, color, 2.4);
      context.setLineDash([]);
      if (jumps) dot(context, places[n - 1], 2.6, color);
    }
    const now = mix(x(Math.floor(shown)), x(Math.ceil(shown)), shown % 1);
    line(context, [[now, energies.top], [now, hardness.bottom]], INK, 1.6);
    const frame = frames[Math.round(shown)];
    if (last === null) curves.forEach(({ box, share, color }) => dot(context, [now, up(box, share(frame))], 4.5, color, "#ffffff", 1.5));
  }

  function draw() {
    drawPlane(chosen());
    drawCourse(chosen());
  }

  function move(now) {
    const toward = target() - shown;
    shown = Math.abs(toward) < 0.02 ? target() : shown + toward * (1 - Math.exp(-Math.max(now - last, 1) / 60));
    last = shown === target() ? null : now;
    draw();
    if (last !== null) requestAnimationFrame(move);
  }

  function say(set) {
    const frame = set.frames[target()], t = frame.temperature;
    const hard = set.hardening_frame !== null && t <= set.hardening_temperature;
    temperature = target() === 0 ? Infinity : t; // the hottest frame stays the hottest
    const isStar = target() === set.hardening_frame;
    at("readout-temperature").textContent = digits(t) + (isStar ? " = T*" : "");
    at("readout-free-energy").textContent = digits(frame.free_energy);
    at("readout-inertia").textContent = digits(frame.inertia);
    at("readout-doubt").textContent = digits(frame.doubt);
    at("readout-hard").textContent = percent(frame.hard);
    at("bar").style.width = `${100 * frame.hard}%`;
    at("state").textContent =
      hard ? `${isStar ? "T = T*" : t === 0 ? "T = 0" : "T < T*"}: all points hard, exactly K-means.`
      : t === 0 ? "T = 0: K-means, the limit."
      : frame.doubt < 0.01 ? "Almost hard: hardly any share is given away."
      : "Soft: points are shared between clusters.";
    slider.setAttribute("aria-valuetext", t === 0 ? "temperature 0" : `temperature ${digits(t)}`);
  }

  function update(jump) {
    const set = chosen();
    say(set);
    if (jump || calm.matches) {
      shown = target();
      draw();
    } else if (last === null && shown !== target()) {
      last = performance.now();
      requestAnimationFrame(move);
    }
  }

  // Another geometry or mapping: the temperature stays about where it was.
  function choose() {
    const set = chosen(), frames = set.frames, t = temperature;
    const gap = (i) => Math.abs(Math.log(frames[i].temperature / t));
    const best = t === 0 ? frames.length - 1 : [...frames.keys()].reduce((found, i) => (gap(i) < gap(found) ? i : found), 0);
    slider.max = frames.length - 1;
    slider.value = best;
    star.hidden = set.hardening_frame === null;
    star.style.setProperty("--at", (set.hardening_frame || 0) / (frames.length - 1));
    frames.forEach((frame) => picture(frame.picture));
    update(true);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    at("readouts").setAttribute("aria-live", "polite");
  }

  function start() {
    if (slider.value === slider.max) {
      slider.value = 0;
      update(true);
    }
    play.textContent = "Pause";
    at("readouts").setAttribute("aria-live", "off"); // nobody can listen that fast
    timer = setInterval(() => {
      slider.value = target() + 1;
      update(false);
      if (slider.value === slider.max) stop();
    }, calm.matches ? 500 : 170);
  }

  play.addEventListener("click", () => (timer === null ? start() : stop()));
  slider.addEventListener("input", () => { stop(); update(false); });
  document.querySelectorAll("#freeze input[type=radio]").forEach((input) => input.addEventListener("change", () => { stop(); choose(); }));
  addEventListener("resize", draw);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  choose();
})();
