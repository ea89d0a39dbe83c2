// A chart of lines with points: axes, grid, bands, marks; its points are reached by pointer and by keyboard.

const MARKS = [
  (s) => draw("circle", { r: s }),
  (s) => draw("rect", { x: -s, y: -s, width: 2 * s, height: 2 * s }),
  (s) => draw("path", { d: `M0 ${-1.4 * s}L${1.4 * s} 0L0 ${1.4 * s}L${-1.4 * s} 0Z` }),
  (s) => draw("path", { d: `M0 ${-1.3 * s}L${1.3 * s} ${s}L${-1.3 * s} ${s}Z` }),
  (s) => draw("path", { d: `M0 ${1.3 * s}L${1.3 * s} ${-s}L${-1.3 * s} ${-s}Z` }),
  (s) => draw("path", { d: `M${-s} ${-s}L${s} ${s}M${s} ${-s}L${-s} ${s}`, "stroke-width": 2.5 }),
  (s) => draw("path", { d: `M0 ${-1.3 * s}V${1.3 * s}M${-1.3 * s} 0H${1.3 * s}`, "stroke-width": 2.5 }),
];

function mark(number, colour, size) {
  return fill(MARKS[number % MARKS.length](size || 4.5), { class: "mark", fill: colour, stroke: colour });
}

function icon(number, colour) {
  return draw("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(number, colour, 4.5));
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * unit).find((x) => x >= rough * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found.map((value) => Number(value.toPrecision(12)));
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of [1, 2, 5]) {
      const value = Number((digit * 10 ** power).toPrecision(6));
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  if (found.length < 3) return ticks(low, high, 6); // less than a power of ten lies between them
  return found.length > 7 ? found.filter((value) => /^[1.0e+-]+$/.test(String(value))) : found;
}

function axis(values, isLog) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!isLog) {
    const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    low -= room;
    high += room;
  } else {
    const room = (high / low) ** 0.05 === 1 ? 1.25 : (high / low) ** 0.05;
    low /= room;
    high *= room;
  }
  const at = isLog ? (v) => (Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low)) : (v) => (v - low) / (high - low);
  return { low, high, at, isLog };
}

// lines: [{name, colour, mark, dash, width, points: [{x, y, low, high, label, lines(), classes}]}]
function lineChart(id, options, lines) {
  const box = byId(id), width = Math.max(280, box.clientWidth), height = options.height || Math.min(460, Math.max(300, width * 0.5));
  const isNarrow = width < 520, left = 58, right = 14, top = 12, bottom = 46;
  const all = lines.flatMap((line) => line.points);
  if (!all.length) {
    box.replaceChildren(make("p", {}, "Nothing to draw with these choices."));
    return;
  }
  const x = axis(all.map((p) => p.x), false);
  const isLog = options.isLog && all.every((p) => p.y > 0 && (p.low === undefined || p.low > 0));
  const y = axis(all.flatMap((p) => (p.low === undefined ? [p.y] : [p.low, p.high])), isLog);
  const px = (v) => left + x.at(v) * (width - left - right), py = (v) => height - bottom - y.at(v) * (height - top - bottom);
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": options.label });
  for (const value of isLog ? logTicks(y.low, y.high) : ticks(y.low, y.high, 6)) {
    root.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: py(value), y2: py(value) }),
      draw("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(x.low, x.high, isNarrow ? 4 : 8)) {
    root.append(draw("line", { class: "grid", y1: top, y2: height - bottom, x1: px(value), x2: px(value) }),
      draw("text", { x: px(value), y: height - bottom + 16, "text-anchor": "middle" }, short(value)));
  }
  root.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    draw("text", { class: "name", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, options.x),
    draw("text", { class: "name", transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, options.y));
  if (options.level !== undefined && options.level !== null) {
    root.append(draw("line", { class: "level", x1: left, x2: width - right, y1: py(options.level), y2: py(options.level) }));
  }
  if (options.diagonal && Math.max(x.low, y.low) < Math.min(x.high, y.high)) { // where both axes say the same
    const low = Math.max(x.low, y.low), high = Math.min(x.high, y.high);
    root.append(draw("line", { class: "level", x1: px(low), y1: py(low), x2: px(high), y2: py(high) }));
  }
  const points = [];
  for (const line of lines) {
    const ordered = [...line.points].sort((a, b) => a.x - b.x);
    const banded = ordered.filter((p) => p.low !== undefined);
    if (banded.length > 1) {
      const edge = [...banded.map((p) => [p.x, p.high]), ...[...banded].reverse().map((p) => [p.x, p.low])];
      root.append(draw("polygon", { class: "band", fill: line.colour, points: edge.map(([a, b]) => px(a) + "," + py(b)).join(" ") }));
    }
    if (line.width !== 0 && ordered.length > 1) {
      root.append(draw("polyline", { fill: "none", stroke: line.colour, "stroke-width": line.width || 1.5,
        "stroke-dasharray": line.dash, points: ordered.map((p) => px(p.x) + "," + py(p.y)).join(" ") }));
    }
    for (const p of ordered) points.push({ p, line });
  }
  points.sort((a, b) => a.p.x - b.p.x || a.p.y - b.p.y);
  points.forEach(({ p, line }, i) => {
    const spot = draw("g", { class: "point " + (p.classes || ""), transform: `translate(${px(p.x)} ${py(p.y)})`,
      role: "img", "aria-label": p.label, tabindex: i ? -1 : 0, "data-i": i }, draw("circle", { r: 9, fill: "transparent" }));
    if (line.dots !== false) spot.append(mark(line.mark || 0, line.colour, line.size));
    if ((p.classes || "").includes("full")) spot.append(draw("circle", { class: "ring", r: 10 }));
    if ((p.classes || "").includes("cheapest")) spot.append(draw("circle", { class: "ring", r: 8, "stroke-dasharray": "3 2" }));
    root.append(spot);
  });
  withTips(root, ".point", (spot) => points[Number(spot.dataset.i)].p.lines());
  box.replaceChildren(root);
}

// A grid of coloured cells; arrows move a cursor through it
function heatMap(id, options, rows, columns) {
  const box = byId(id), width = Math.max(280, box.clientWidth), left = options.left || 46, top = 6, bottom = 42;
  const cell = (width - left - 8) / Math.max(1, columns.length);
  const size = Math.min(26, Math.max(6, Math.min(cell, 420 / Math.max(1, rows.length)))) * (rows.length > 48 ? 0.9 : 1);
  const tall = rows.length * size, height = top + tall + bottom;
  const root = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": options.label });
  rows.forEach((row, i) => {
    row.values.forEach((value, j) => {
      if (value === null) return;
      root.append(draw("rect", { class: "cell", x: left + j * cell, y: top + i * size, width: cell + 0.4, height: size + 0.4,
        fill: css(options.colour(value)), "data-i": i, "data-j": j }));
    });
    if (i % Math.ceil(14 / size) === 0) {
      root.append(draw("text", { x: left - 6, y: top + i * size + size / 2 + 4, "text-anchor": "end" }, row.name));
    }
  });
  const every = Math.max(1, Math.ceil(columns.length / Math.max(2, Math.floor((width - left) / 70))));
  columns.forEach((name, j) => {
    if (j % every === 0) root.append(draw("text", { x: left + (j + 0.5) * cell, y: top + tall + 16, "text-anchor": "middle" }, name));
  });
  root.append(draw("text", { class: "name", x: left + (width - left) / 2, y: height - 6, "text-anchor": "middle" }, options.x));
  const cursor = draw("rect", { class: "ring", width: cell, height: size, visibility: "hidden" });
  root.append(cursor);
  let at = [0, 0];
  const show = (i, j) => {
    at = [i, j];
    fill(cursor, { x: left + j * cell, y: top + i * size, visibility: "visible" });
    const told = options.tell(rows[i], columns[j], rows[i].values[j]);
    root.setAttribute("aria-label", options.label + ". " + told.join(", "));
    showTip(cursor, told);
  };
  root.addEventListener("pointerover", (event) => {
    const { i, j } = event.target.dataset;
    if (i !== undefined) show(Number(i), Number(j));
  });
  root.addEventListener("pointerleave", hideTip);
  root.addEventListener("focus", () => show(...at));
  root.addEventListener("blur", hideTip);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const clamp = (value, most) => Math.min(Math.max(value, 0), most - 1);
    show(clamp(at[0] + step[0], rows.length), clamp(at[1] + step[1], columns.length));
  });
  box.replaceChildren(root);
}
