// Tables: sorted by a click on a heading; the one of all settings can be filtered, and downloaded.

const ROWS_AT_FIRST = 100;

// columns: [{name, value(row), show(value, row), isText}]
function sortable(id, columns, rows, options) {
  const table = byId(id), state = { column: null, falls: false, limit: ROWS_AT_FIRST, kept: rows };
  const heads = columns.map((column, i) => {
    const head = make("th", { scope: "col", class: column.isText ? "words" : null });
    head.append(make("button", { type: "button", onclick: () => {
      state.falls = state.column === i ? !state.falls : false;
      state.column = i;
      redraw();
    } }, column.name));
    return head;
  });
  const body = make("tbody");
  const order = (a, b) => {
    const [x, y] = [a, b].map(columns[state.column].value);
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (state.falls ? -1 : 1) * (typeof x === "number" ? x - y : String(x).localeCompare(String(y)));
  };
  const redraw = () => {
    heads.forEach((head, i) => {
      const way = i === state.column ? (state.falls ? "descending" : "ascending") : "none";
      head.setAttribute("aria-sort", way);
      head.firstChild.textContent = columns[i].name + { none: "", ascending: " ▲", descending: " ▼" }[way];
    });
    const sorted = state.column === null ? state.kept : [...state.kept].sort(order);
    body.replaceChildren(...sorted.slice(0, state.limit).map((row) => make("tr", { class: options.rowClass ? options.rowClass(row) : null },
      columns.map((column) => make(column.isHead ? "th" : "td", { class: column.isText ? "words" : null, dir: column.isText ? "auto" : null },
        column.show(column.value(row), row))))));
    if (options.note) options.note(state, sorted);
  };
  table.replaceChildren(make("thead", {}, make("tr", {}, heads)), body);
  redraw();
  return { filter(keeps) { state.kept = rows.filter(keeps); redraw(); }, all() { state.limit = Infinity; redraw(); } };
}

function badges(point) {
  const found = [];
  if (point.full) found.push(make("span", { class: "badge" }, "full model"));
  if (point.cheapest) found.push(make("span", { class: "badge good" }, "cheapest at full quality"));
  for (const each of point.calibrated || []) {
    found.push(make("span", { class: each.met ? "badge good" : "badge bad", title: each.goal }, "calibrated: " + each.name + (each.met ? "" : " (missed)")));
  }
  return found;
}

function startSettings() {
  const rows = DATA.frontiers.flatMap((frontier) => frontier.points.map((point) => ({ frontier, point, full: fullOf(frontier) })));
  if (!rows.length) return;
  byId("settings").hidden = false;
  const of = (name) => (row) => (row.full && row.full[name] && row.point[name] !== null ? row.point[name] / row.full[name] : null);
  const spread = (name, digits) => (value, row) => fixed(value, digits) + (row.point[name + "_deviation"] === undefined ? "" : " ± " + fixed(row.point[name + "_deviation"], digits));
  const lost = (row) => (row.full && row.full.quality !== null && row.point.quality !== null ? row.point.quality - row.full.quality : null);
  const metrics = [...new Set(DATA.frontiers.map((f) => f.metric))], isOne = DATA.frontiers.length === 1;
  const columns = [
    ...(isOne ? [] : [{ name: "run", isText: true, value: (r) => r.frontier.name, show: (v) => v }]),
    { name: "setting", isText: true, value: (r) => r.point.name, show: (v, r) => [v, ...badges(r.point)] },
    ...(metrics.length > 1 ? [{ name: "metric", isText: true, value: (r) => r.frontier.metric, show: (v) => v }] : []),
    { name: metrics.length > 1 ? "quality" : metrics[0], value: (r) => r.point.quality, show: spread("quality", 2) },
    { name: "against full", value: lost, show: (v) => (v === null ? "–" : (v > 0 ? "+" : "") + v.toFixed(2)) },
    { name: "mean depth", value: (r) => r.point.depth, show: spread("depth", 2) },
    { name: "of full", value: of("depth"), show: share },
    { name: "operations", value: (r) => r.point.flops, show: operations },
    { name: "of full", value: of("flops"), show: share },
    { name: "time", value: (r) => r.point.seconds, show: duration },
    { name: "of full", value: of("seconds"), show: share },
  ];
  const more = make("button", { type: "button", hidden: true });
  const table = sortable("settings-table", columns, rows, {
    note: (state, sorted) => {
      byId("settings-note").textContent = `${Math.min(state.limit, sorted.length)} of ${rows.length} settings. Operations and time are per input.`;
      more.hidden = sorted.length <= state.limit;
      more.textContent = `Show all ${sorted.length}`;
    },
  });
  more.addEventListener("click", () => table.all());
  const search = make("input", { type: "search", oninput: () => filter() });
  const only = make("input", { type: "checkbox", onchange: () => filter() });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    table.filter((row) => (!only.checked || (row.point.calibrated || []).length) &&
      words.every((word) => (row.frontier.name + " " + row.point.name).toLowerCase().includes(word)));
  };
  const hasCalibrated = rows.some((row) => row.point.calibrated);
  byId("settings-controls").replaceChildren(make("label", {}, ["Filter", search]),
    ...(hasCalibrated ? [make("label", {}, [only, "calibrated ones only"])] : []), more);
  download(byId("download-csv"), "text/csv", () => asCsv(rows));
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  // A text that a spreadsheet would take for a formula is told to be one
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function asCsv(rows) {
  const head = ["run", "task", "split", "metric", "policy", "setting", "quality", "quality_deviation", "mean_depth", "mean_depth_deviation",
    "flops_per_input", "seconds_per_input", "seeds", "full", "calibrated"];
  const lines = rows.map(({ frontier, point }) => [frontier.name, frontier.task, frontier.split, frontier.metric, point.policy,
    JSON.stringify(point.setting), point.quality, point.quality_deviation, point.depth, point.depth_deviation, point.flops, point.seconds,
    (point.each || [0]).length, Boolean(point.full), (point.calibrated || []).map((each) => each.name).join(" ")]);
  return [head, ...lines].map((line) => line.map(csvCell).join(",") + "\r\n").join("");
}

function startEvaluations() {
  const rows = DATA.runs.flatMap((run) => run.evaluations.map((found) => ({ run, found })));
  const isOne = DATA.runs.length === 1;
  if (rows.length) {
    byId("evaluations").hidden = false;
    sortable("evaluations-table", [
      ...(isOne ? [] : [{ name: "run", isText: true, value: (r) => r.run.name, show: (v) => v }]),
      { name: "evaluation", isText: true, value: (r) => r.found.name, show: (v) => v },
      { name: "metrics", isText: true, value: (r) => r.found.metrics[r.found.metric],
        show: (v, r) => Object.entries(r.found.metrics).map(([name, value]) => name + " " + (typeof value === "number" ? value.toFixed(2) : "not finite")).join(", ") },
      { name: "inputs", value: (r) => r.found.examples, show: (v) => short(v) },
      { name: "mean depth", value: (r) => r.found.mean_depth, show: (v) => fixed(v, 2) },
      { name: "operations", value: (r) => r.found.flops, show: operations },
      { name: "time", value: (r) => r.found.seconds, show: duration },
      { name: "tokens/s", value: (r) => r.found.tokens_per_second, show: (v) => (v ? Math.round(v).toLocaleString("en") : "–") },
      { name: "on", isText: true, value: (r) => r.found.hardware, show: (v) => v },
    ], rows, {});
  }
  const settings = DATA.runs.flatMap((run) => run.settings.map((found) => ({ run, found })));
  if (!settings.length) return;
  byId("calibrated").hidden = false;
  sortable("calibrated-table", [
    ...(isOne ? [] : [{ name: "run", isText: true, value: (r) => r.run.name, show: (v) => v }]),
    { name: "name", isText: true, value: (r) => r.found.name, show: (v, r) => [v, make("span", { class: r.found.met ? "badge good" : "badge bad" }, r.found.met ? "goal met" : "goal missed")] },
    { name: "asked for", isText: true, value: (r) => r.found.goal, show: (v) => v },
    { name: "setting", isText: true, value: (r) => r.found.policy, show: (v) => v },
    { name: "quality", value: (r) => r.found.quality, show: (v, r) => fixed(v, 2) + " of " + fixed(r.found.full_quality, 2) },
    { name: "mean depth", value: (r) => r.found.depth, show: (v, r) => fixed(v, 2) + " of " + r.found.full_depth },
    { name: "operations", value: (r) => r.found.flops_share, show: share },
    { name: "found on", isText: true, value: (r) => r.found.examples, show: (v, r) => v + " inputs, " + r.found.split },
  ], settings, {});
}
