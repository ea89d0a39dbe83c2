// Tokens coloured by the depth at which they left, and how depth is shared out.

// A run without a policy ran "as trained", all others by what they name.
const bySetting = (found) => (found.setting.startsWith("as ") ? "" : "by ") + found.setting;

function startDepths() {
  const runs = DATA.runs.filter((run) => run.depths);
  if (!runs.length) return;
  startTokens(runs);
  startHistograms(runs);
}

const SENTENCES_AT_FIRST = 8;

function startTokens(runs) {
  const withSentences = runs.filter((run) => run.depths.sentences.length);
  if (!withSentences.length) return;
  byId("tokens").hidden = false;
  const state = { run: 0, order: "first", words: [], most: SENTENCES_AT_FIRST };
  const more = make("button", { type: "button", onclick: () => { state.most = Infinity; redraw(); } }, "Show all");
  const redraw = () => {
    const run = withSentences[state.run], found = run.depths, most = found.num_layers;
    const mean = (sentence) => sentence.depths.reduce((a, b) => a + b, 0) / Math.max(1, sentence.depths.length);
    let kept = found.sentences.map((sentence, number) => ({ sentence, number, mean: mean(sentence) }));
    const text = ({ sentence }) => [sentence.source, sentence.output, sentence.reference, sentence.tokens.join("")].join(" ").toLowerCase();
    kept = kept.filter((each) => state.words.every((word) => text(each).includes(word)));
    if (state.order === "deepest") kept.sort((a, b) => b.mean - a.mean);
    if (state.order === "shallowest") kept.sort((a, b) => a.mean - b.mean);
    if (state.order === "wrong") kept = kept.filter(({ sentence }) => sentence.reference !== null && sentence.reference !== sentence.output);
    depthLegend("tokens-legend", most);
    byId("tokens-about").textContent = (found.of_output ? "Tokens of the output" : "Tokens of the input") +
      `, each with the number of blocks that it ran, ${bySetting(found)}: the first ${found.split} inputs.` +
      (found.sentences.some((sentence) => sentence.guesses.length) ? " Point at a token, or move to it with Tab and the arrow keys, to see what every exit would have said." : "");
    byId("tokens-count").textContent = `${Math.min(kept.length, state.most)} of ${found.sentences.length} sentences`;
    byId("tokens-list").replaceChildren(...kept.slice(0, state.most).map((each) => sentenceOf(found, each)));
    if (kept.length > state.most) byId("tokens-list").append(more);
  };
  const search = make("input", { type: "search", oninput: () => {
    state.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    redraw();
  } });
  const controls = [make("label", {}, ["Sentences with", search]),
    select("Show", [["first", "in order"], ["deepest", "deepest first"], ["shallowest", "shallowest first"], ["wrong", "those unlike their reference"]],
      (value) => { state.order = value; redraw(); })];
  if (withSentences.length > 1) controls.unshift(select("Run", withSentences.map((run, i) => [i, run.name]), (value) => { state.run = Number(value); redraw(); }));
  byId("tokens-controls").replaceChildren(...controls);
  redraw();
}

function sentenceOf(found, { sentence, number, mean }) {
  const strip = make("div", { class: "strip", dir: "auto", role: "group", "aria-label": "tokens of sentence " + (number + 1) },
    sentence.tokens.map((token, i) => {
      const depth = sentence.depths[i], text = token.startsWith(" ") ? token.slice(1) : token;
      const button = make("button", { type: "button", class: "token" + ((sentence.tokens[i + 1] || "").startsWith(" ") ? " ends" : ""), tabindex: i ? -1 : 0, dir: "auto",
        "data-i": i, "aria-label": `${text}, depth ${depth}` }, [text.length > 60 ? text.slice(0, 57) + "…" : text, make("sub", {}, String(depth))]);
      return paint(button, depthColour(depth, found.num_layers));
    }));
  withTips(strip, ".token", (button) => tokenLines(found, sentence, Number(button.dataset.i)));
  const shown = [make("p", { dir: "auto" }, [make("b", {}, number + 1 + ". "), make("bdi", {}, found.of_output ? sentence.source : sentence.output === null ? "" : sentence.output),
    make("span", { class: "small" }, "  mean depth " + mean.toFixed(2))])];
  const whole = wholeGuesses(found, sentence);
  if (whole) shown.push(make("p", { class: "small" }, whole));
  shown.push(strip);
  if (sentence.left_out) shown.push(make("p", { class: "small" }, `and ${sentence.left_out} more tokens`));
  if (sentence.reference !== null && sentence.reference !== sentence.output) {
    shown.push(make("p", { class: "small" }, ["right: ", make("bdi", {}, sentence.reference)]));
  }
  return make("article", { class: "sentence" }, shown);
}

// A text that is classified has one guess at each exit, not one for each token
function isWhole(sentence) { return sentence.guesses.length > 0 && sentence.guesses[0].length === 1 && sentence.tokens.length !== 1; }

function wholeGuesses(found, sentence) {
  if (!isWhole(sentence)) return null;
  return sentence.guesses.map(([[text, chance]], e) => `exit ${found.exits[e]}: ${text} ${share(chance)}`).join(", ");
}

function tokenLines(found, sentence, i) {
  const depth = sentence.depths[i], lines = [make("b", { dir: "auto" }, sentence.tokens[i].trim() || "␣"), `left after ${depth} of ${found.num_layers} blocks`];
  if (isWhole(sentence)) return lines;
  sentence.guesses.forEach((guesses, e) => {
    if (!guesses[i]) return;
    const [text, chance] = guesses[i], here = found.exits[e] === depth;
    lines.push(tipRow(`exit ${found.exits[e]}${here ? " ◀" : ""}  ${text.length > 40 ? text.slice(0, 37) + "…" : text}`, (100 * chance).toFixed(1) + " %", here));
  });
  return lines;
}

const BY = { all: "all tokens", position: "position in the text", length: "length of the text", frequency: "frequency in training", tag: "tag or label" };

function startHistograms(all) {
  const runs = all.filter((run) => Object.keys(BY).some((by) => run.depths.histograms[by]));
  if (!runs.length) return;
  byId("depths").hidden = false;
  const state = { run: 0, by: "position" };
  const bySelect = make("select", { onchange: () => { state.by = bySelect.value; redraw(); } });
  const redraw = () => {
    const found = runs[state.run].depths, there = Object.keys(BY).filter((by) => found.histograms[by]);
    if (!there.includes(state.by)) state.by = there[0];
    bySelect.replaceChildren(...there.map((by) => make("option", { value: by, selected: by === state.by }, BY[by])));
    const { bins, counts, training_examples: seen } = found.histograms[state.by];
    depthLegend("depths-legend", found.num_layers);
    bars("depths-chart", BY[state.by], bins, counts, found.num_layers);
    const notes = [`${found.examples} ${found.split} inputs, ${bySetting(found)}. Each bar is all tokens of a row; the number is their mean depth.`];
    if (state.by === "frequency" && seen) notes.push(`Rank 1 is the most frequent token of ${seen.toLocaleString("en")} training examples.`);
    if (!found.histograms.frequency) notes.push("The training data is not here, so that nothing is known of frequencies.");
    byId("depths-note").textContent = notes.join(" ");
  };
  const controls = [make("label", {}, ["By", bySelect])];
  if (runs.length > 1) controls.unshift(select("Run", runs.map((run, i) => [i, run.name]), (value) => { state.run = Number(value); redraw(); }));
  byId("depths-controls").replaceChildren(...controls);
  redrawn.push(redraw);
  redraw();
}

function bars(id, name, bins, counts, most) {
  const box = byId(id), width = Math.max(280, box.clientWidth), left = Math.min(180, width * 0.4, 20 + 7 * Math.max(...bins.map((bin) => bin.length))), right = 52, size = 26, gap = 6;
  const root = draw("svg", { viewBox: `0 0 ${width} ${bins.length * (size + gap)}`, role: "group", "aria-label": "Depths by " + name });
  const parts = [];
  bins.forEach((bin, i) => {
    const total = counts[i].reduce((a, b) => a + b, 0), y = i * (size + gap);
    const mean = counts[i].reduce((sum, count, d) => sum + count * (d + 1), 0) / total;
    root.append(draw("text", { class: "name", x: left - 8, y: y + size / 2 + 4, "text-anchor": "end" }, bin.length > 24 ? bin.slice(0, 22) + "…" : bin),
      draw("text", { class: "name", x: width - right + 8, y: y + size / 2 + 4 }, mean.toFixed(2)));
    let at = left;
    counts[i].forEach((count, d) => {
      if (!count) return;
      const wide = (count / total) * (width - left - right);
      root.append(draw("rect", { class: "point bar", x: at, y, width: Math.max(0.5, wide), height: size, fill: css(depthColour(d + 1, most)), role: "img",
        tabindex: parts.length ? -1 : 0, "data-i": parts.length, "aria-label": `${bin}: ${share(count / total)} of ${total} tokens ran ${d + 1} blocks` }));
      parts.push([make("b", { dir: "auto" }, bin), `${d + 1} of ${most} blocks: ${count.toLocaleString("en")} of ${total.toLocaleString("en")} tokens, ${share(count / total)}`, `mean depth ${mean.toFixed(2)}`]);
      at += wide;
    });
  });
  withTips(root, ".bar", (bar) => parts[Number(bar.dataset.i)]);
  box.replaceChildren(root);
}
