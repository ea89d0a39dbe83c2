// A strip of tokens, each coloured by its depth; arrows go from one to the next, and a tip says more.

import { byId, make, paint } from "./elements.js";

const LONGEST = 60;

function shown(text) {
  const trimmed = text.replace(/^ /, "");
  return trimmed.length > LONGEST ? trimmed.slice(0, LONGEST - 3) + "…" : trimmed || (text ? "␣" : "·");
}

export class Strip {
  constructor(name, layers) {
    this.layers = layers;
    this.tokens = [];
    this.element = make("div", { class: "strip", dir: "auto", role: "group", "aria-label": name });
    const tokenOf = (event) => event.target.closest(".token");
    const show = (event) => { if (tokenOf(event)) this.showTip(tokenOf(event)); };
    for (const kind of ["pointerover", "focusin", "click"]) this.element.addEventListener(kind, show);
    for (const kind of ["pointerout", "focusout"]) this.element.addEventListener(kind, hideTip);
    this.element.addEventListener("keydown", (event) => this.move(event, tokenOf(event)));
  }

  replace(tokens) {
    this.tokens = [];
    this.element.replaceChildren();
    for (const token of tokens) this.add(token);
  }

  add(token) {
    const before = this.element.lastElementChild;
    if (before && token.text.startsWith(" ")) before.classList.add("ends");
    const button = make("button", { type: "button", class: "token", dir: "auto", tabindex: this.tokens.length ? -1 : 0,
      "data-i": this.tokens.length }, [shown(token.text), token.tag ? make("i", {}, token.tag) : null]);
    if (token.depth) {
      button.append(make("sub", {}, String(token.depth)));
      paint(button, token.depth, this.layers);
    }
    this.tokens.push(token);
    this.element.append(button);
    this.name(button, token, false);
  }

  name(button, token, isOther) {
    const parts = [shown(token.text), token.tag, token.depth ? `depth ${token.depth} of ${this.layers}` : null,
      isOther ? "unlike full depth" : null];
    button.setAttribute("aria-label", parts.filter(Boolean).join(", "));
  }

  // Marks the tokens that the other answer does not have
  mark(others) {
    [...this.element.children].forEach((button, i) => {
      const isOther = others.has(i);
      button.classList.toggle("other", isOther);
      this.name(button, this.tokens[i], isOther);
    });
  }

  showTip(button) {
    const token = this.tokens[Number(button.dataset.i)], tip = byId("tip"), lines = [];
    if (token.depth) lines.push(`left after ${token.depth} of ${this.layers} blocks`);
    if (token.tag) lines.push(token.tag);
    if (typeof token.score === "number") lines.push(`probability ${(100 * Math.exp(token.score)).toFixed(1)} %`);
    if (button.classList.contains("other")) lines.push("unlike the answer of full depth");
    tip.replaceChildren(make("b", { dir: "auto" }, shown(token.text)), ...lines.map((line) => make("span", {}, line)));
    tip.hidden = false;
    const box = button.getBoundingClientRect(), size = tip.getBoundingClientRect(), above = box.top - size.height - 8;
    tip.style.left = Math.min(Math.max(4, box.left + box.width / 2 - size.width / 2), innerWidth - size.width - 4) + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 8) + "px";
  }

  move(event, from) {
    if (event.key === "Escape") hideTip();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = from && step && this.element.children[Number(from.dataset.i) + step];
    if (!to) return;
    event.preventDefault();
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
}

export function hideTip() { byId("tip").hidden = true; }

// Which of the first tokens are in no longest common subsequence with the second ones
export function unlike(first, second) {
  const same = (a, b) => a.text === b.text && a.tag === b.tag, others = new Set(first.keys());
  let start = 0, end = 0;
  const most = Math.min(first.length, second.length);
  while (start < most && same(first[start], second[start])) others.delete(start++);
  while (end < most - start && same(first[first.length - 1 - end], second[second.length - 1 - end])) others.delete(first.length - 1 - end++);
  const rows = first.length - start - end, columns = second.length - start - end;
  if (rows * columns > 1e6) return others;
  const best = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; i--) {
    for (let j = columns - 1; j >= 0; j--) {
      best[i][j] = same(first[start + i], second[start + j]) ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  for (let i = 0, j = 0; i < rows && j < columns;) {
    if (same(first[start + i], second[start + j])) { others.delete(start + i); i++; j++; }
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return others;
}
