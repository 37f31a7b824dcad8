// Answer questions about images one after the other, outside of the page: messages {id, verb, tag, blob, parameters} in,
// {id, answer} or {id, error} out, and {bytes} while files arrive.

import {Model} from "./model.js";

const KEPT = 8; // maximum number of cached encodings

let bytes = 0;
const model = Model.open((more) => postMessage({bytes: (bytes += more)}));
const encodings = new Map(), dropped = new Set();

async function encodingOf(tag, blob) {
  const encoding = encodings.get(tag) ?? (await (await model).encode(blob));
  encodings.delete(tag);
  if (tag !== null) encodings.set(tag, encoding);
  if (encodings.size > KEPT) encodings.delete(encodings.keys().next().value);
  return encoding;
}

async function answer({verb, tag, blob, parameters}) {
  const ready = await model;
  if (verb === "models") return {name: ready.info.name, parts: ready.parts, bytes: ready.info.bytes};
  return ready[verb](await encodingOf(tag, blob), parameters);
}

async function reply(question) {
  const {id} = question;
  if (dropped.delete(id)) return;
  try {
    postMessage({id, answer: await answer(question)});
  } catch (error) {
    postMessage({id, error: error.message});
  }
}

let last = Promise.resolve();

self.addEventListener("message", ({data}) => {
  if (data.drop !== undefined) dropped.add(data.drop);
  else last = last.then(() => reply(data));
});

// Fetch what regions need while the page waits for an image.
model.then((ready) => Promise.all([ready.session(), ready.detector(), ready.classes()])).catch(() => {});
