// Requests to the server. Whatever goes wrong becomes a Problem: a sentence, a remedy and what may be done about it.

export class Problem extends Error {
  constructor(message, { remedy = "", status = 0, wait = null } = {}) {
    super(message);
    this.remedy = remedy;
    this.status = status;
    this.wait = wait;
  }
}

let key = "";
export function useKey(given) { key = given; }
export function hasKey() { return key !== ""; }

async function send(path, options) {
  const headers = { ...(options.headers || {}), ...(key ? { Authorization: "Bearer " + key } : {}) };
  let reply;
  try {
    reply = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer.", { remedy: "See whether depthwise serve still runs, then try again." });
  }
  if (reply.ok) return reply;
  let told = null;
  try { told = (await reply.json()).error; } catch { /* no JSON: the status has to do */ }
  throw problemOf(told, reply.status, reply.headers.get("Retry-After"));
}

function problemOf(told, status, after) {
  const wait = after === null || !Number.isFinite(Number(after)) ? null : Number(after);
  const message = (told && told.message) || `The server answered with status ${status}.`;
  const remedy = (told && told.remedy) || (wait !== null ? `Try again in ${wait} s.` : "");
  return new Problem(message, { remedy, status, wait });
}

async function whole(reply) {
  try {
    return await reply.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The answer of the server was cut off.", { remedy: "Try again." });
  }
}

export async function getModels() { return (await whole(await send("v1/models", {}))).models; }

export async function ask(path, body, signal) { return whole(await post(path, body, signal)); }

function post(path, body, signal) {
  return send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
}

// An answer as it is made: `onToken` sees every token, the whole answer comes last
export async function askStreaming(path, body, signal, onToken) {
  const reply = await post(path, { ...body, stream: true }, signal);
  for await (const { event, data } of events(reply.body)) {
    if (event === "token") onToken(JSON.parse(data));
    else if (event === "done") return JSON.parse(data);
    else if (event === "error") throw problemOf(JSON.parse(data).error || JSON.parse(data), 0, null);
  }
  throw new Problem("The answer of the server was cut off.", { remedy: "Try again." });
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (text + value).replace(/\r\n/g, "\n").split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const found = { event: "message", data: [] };
        for (const line of block.split("\n")) {
          const [, field, content] = line.match(/^(\w+): ?([^]*)$/) || [];
          if (field === "event") found.event = content;
          if (field === "data") found.data.push(content);
        }
        if (found.data.length) yield { event: found.event, data: found.data.join("\n") };
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The answer of the server was cut off.", { remedy: "See whether depthwise serve still runs, then try again." });
  } finally {
    reader.cancel().catch(() => {});
  }
}
