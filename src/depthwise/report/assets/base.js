"use strict";
// What comes from runs is set as text only (textContent, setAttribute), never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function byId(id) { return document.getElementById(id); }

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of [children].flat(3)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

function make(name, attributes, children) { return fill(document.createElement(name), attributes, children); }
function draw(name, attributes, children) { return fill(document.createElementNS(SVG, name), attributes, children); }

// Numbers as people read them

function fixed(value, digits) { return value === null || value === undefined ? "–" : value.toFixed(digits); }

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function operations(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return (value / size).toPrecision(3) + " " + unit + "FLOPs";
  }
  return Math.round(value) + " FLOPs";
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? (1000 * seconds).toPrecision(3) + " ms" : seconds.toPrecision(3) + " s";
}

function share(value) { return value === null || value === undefined ? "–" : (100 * value).toFixed(0) + " %"; }

// Colours

const DEPTHS = [[255, 243, 176], [255, 209, 102], [247, 157, 92], [217, 82, 107], [142, 47, 127], [59, 28, 113]];
const GATES = [[244, 247, 252], [159, 195, 238], [59, 130, 214], [18, 63, 122]];

function between(stops, where) {
  const place = Math.min(Math.max(where, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((value, i) => Math.round(value + (place - low) * (stops[low + 1][i] - value)));
}

function luminance(colour) {
  const [r, g, b] = colour.map((value) => {
    const x = value / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function depthColour(depth, most) { return between(DEPTHS, most > 1 ? (depth - 1) / (most - 1) : 0); }
function css(colour) { return "rgb(" + colour.join(" ") + ")"; }
function onTop(colour) { return luminance(colour) > 0.18 ? "#000000" : "#ffffff"; }
function seriesColour(number) { return "var(--s" + (number % 10) + ")"; }

function paint(element, colour) {
  element.style.background = css(colour);
  element.style.color = onTop(colour);
  return element;
}

function depthLegend(id, most) {
  const swatches = [];
  for (let depth = 1; depth <= most; depth++) {
    if (most > 24 && depth % Math.ceil(most / 12) && depth !== 1 && depth !== most) continue;
    swatches.push(paint(make("span", { class: "swatch" }, String(depth)), depthColour(depth, most)));
  }
  byId(id).replaceChildren("Blocks that a token ran: ", ...swatches);
}

// The tip: what is under the pointer, or has the focus

const tip = byId("tip");

function tipRow(left, right, here) {
  return make("span", { class: here ? "row here" : "row" }, [make("span", { dir: "auto" }, left), make("span", {}, right)]);
}

function showTip(target, lines) {
  tip.replaceChildren(...lines.map((line) => (typeof line === "string" ? make("span", { dir: "auto" }, line) : line)));
  tip.hidden = false;
  const box = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
  if (target instanceof SVGElement && box.right + 12 + size.width < innerWidth) { // beside a point, so that its line stays in sight
    tip.style.left = box.right + 8 + "px";
    tip.style.top = Math.min(Math.max(4, box.top - 8), innerHeight - size.height - 4) + "px";
    return;
  }
  const left = Math.min(Math.max(4, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 4);
  const above = box.top - size.height - 8;
  tip.style.left = left + "px";
  tip.style.top = (above > 4 ? above : Math.min(box.bottom + 8, innerHeight - size.height - 4)) + "px";
}

function hideTip() { tip.hidden = true; }

// Tips of all things below a root that `lines` knows something of; arrows go from one thing to the next
function withTips(root, selector, lines) {
  const find = (event) => event.target.closest && event.target.closest(selector);
  const show = (event) => {
    const found = find(event);
    if (found) showTip(found, lines(found));
  };
  root.addEventListener("pointerover", show);
  root.addEventListener("focusin", show);
  root.addEventListener("click", show);
  root.addEventListener("pointerout", hideTip);
  root.addEventListener("focusout", hideTip);
  root.addEventListener("keydown", (event) => {
    const found = find(event);
    if (event.key === "Escape") hideTip();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!found || !step) return;
    const all = [...root.querySelectorAll(selector)];
    const next = all[all.indexOf(found) + step];
    if (!next) return;
    event.preventDefault();
    found.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
}

document.addEventListener("scroll", hideTip, { passive: true, capture: true });

// Controls

function select(label, options, onChange) {
  const box = make("select", { onchange: () => onChange(box.value) },
    options.map(([value, text]) => make("option", { value }, text)));
  return make("label", {}, [label, box]);
}

function chips(legend, names, icons, onChange) {
  const off = new Set();
  const all = names.map((name, i) => {
    const chip = make("button", { type: "button", class: "chip", "aria-pressed": "true", dir: "auto" }, [icons(i), name]);
    chip.addEventListener("click", () => {
      if (!off.delete(name)) off.add(name);
      chip.setAttribute("aria-pressed", String(!off.has(name)));
      onChange(off);
    });
    return chip;
  });
  return make("fieldset", { class: "chips" }, [make("legend", {}, legend), all]);
}

// What a link gives is made when somebody asks for it
function download(link, type, content) {
  link.addEventListener("click", () => {
    if (!link.href.startsWith("blob:")) link.href = URL.createObjectURL(new Blob([content()], { type }));
  });
}
