// Decoding: greedy and beam search, and the probability of given words.

import {Matrix, largest, layer, linear, logSoftmax, lstmStep, recurrent, relu} from "./matrix.js";

export const [PAD, START, END, UNKNOWN] = [0, 1, 2, 3];
const NEVER = 1e3;

// DenseCap's decoder (section 3.1.4); a state is a list of matrices whose rows can be selected freely.
export class LstmDecoder {
  constructor(weights, name) {
    this.encode = layer(weights, `${name}.encode`);
    const words = layer(weights, `${name}.words`).weight;
    this.words = words;
    this.lstm = recurrent(weights, `${name}.lstm`);
    this.output = layer(weights, `${name}.output`);
  }

  start(embeddings) {
    const inputs = linear(relu(linear(embeddings, this.encode)), this.lstm.input);
    const nothing = new Matrix(embeddings.rows, this.lstm.state.weight.columns);
    return lstmStep(inputs, this.lstm, nothing, nothing);
  }

  // Return the log-probabilities (N, V) of the words after these, and the next state.
  step(tokens, [h, c]) {
    const next = lstmStep(linear(this.words.pick(tokens), this.lstm.input), this.lstm, h, c);
    return [logSoftmax(linear(next[0], this.output)), next];
  }
}

export const pickState = (state, rows) => state.map((part) => part.pick(rows));

function next(decoder, tokens, state, never = []) {
  const [logs, following] = decoder.step(tokens, state);
  for (let i = 0; i < logs.rows; i++) for (const token of [PAD, START, UNKNOWN, ...never]) logs.row(i)[token] = -Infinity;
  return [logs, following];
}

// Decode a sentence for each row of embeddings: [{tokens, logs}], END included if it was reached.
// A hypothesis with refused tokens is chosen only if all have some; excluded tokens are never decoded.
export function decode(decoder, embeddings, config, refused = () => false, never = []) {
  if (config.beam_size === 1) return greedy(decoder, embeddings, config.max_words, never);
  return Array.from({length: embeddings.rows}, (_, i) => beam(decoder, embeddings.pick([i]), config, refused, never));
}

function greedy(decoder, embeddings, most, never) {
  const sentences = Array.from({length: embeddings.rows}, () => ({tokens: [], logs: []}));
  if (!embeddings.rows) return sentences;
  let state = decoder.start(embeddings), open = sentences, last = sentences.map(() => START);
  for (let step = 0; step < most; step++) {
    const [logs, following] = next(decoder, last, state, never);
    const left = [];
    last = open.map((sentence, i) => {
      const row = logs.row(i), token = largest(row);
      sentence.tokens.push(token);
      sentence.logs.push(row[token]);
      if (token !== END) left.push(i);
      return token;
    });
    if (!left.length) break;
    [state, open, last] = [pickState(following, left), left.map((i) => open[i]), left.map((i) => last[i])];
  }
  return sentences;
}

// Beam search for one sentence; ended hypotheses continue with padding at no cost.
function beam(decoder, embedding, {max_words: most, beam_size: size, length_penalty: penalty}, refused, never) {
  let state = pickState(decoder.start(embedding), Array(size).fill(0));
  let hypotheses = Array.from({length: size}, (_, i) => ({tokens: [], logs: [], total: i ? -Infinity : 0, ended: false}));
  const words = ({tokens}) => tokens.filter((token) => token !== PAD).length;
  for (let step = 0; step < most; step++) {
    const [logs, following] = next(decoder, hypotheses.map(({tokens}) => tokens.at(-1) ?? START), state, never);
    const candidates = hypotheses.flatMap((hypothesis, parent) => {
      const length = (words(hypothesis) + (hypothesis.ended ? 0 : 1)) ** penalty;
      const of = (token, log) => ({parent, token, log, rank: (hypothesis.total + log) / length});
      if (hypothesis.ended) return [of(PAD, 0)];
      const row = logs.row(parent);
      return topOf(row, size).map((token) => of(token, row[token]));
    });
    candidates.sort((a, b) => b.rank - a.rank || a.parent - b.parent || a.token - b.token);
    const chosen = candidates.slice(0, size);
    hypotheses = chosen.map(({parent, token, log}) => {
      const {tokens, logs: before, total, ended} = hypotheses[parent];
      return {tokens: [...tokens, token], logs: [...before, log], total: total + log, ended: ended || token === END};
    });
    state = pickState(following, chosen.map(({parent}) => parent));
    if (hypotheses.every(({ended}) => ended)) break;
  }
  const rank = (hypothesis) => hypothesis.total / Math.max(words(hypothesis), 1) ** penalty;
  const ranks = hypotheses.map((hypothesis) => rank(hypothesis) - (refused(hypothesis.tokens) ? NEVER : 0));
  const {tokens, logs} = hypotheses[largest(ranks)];
  const length = tokens.filter((token) => token !== PAD).length;
  return {tokens: tokens.slice(0, length), logs: logs.slice(0, length)};
}

// Return the indices of the largest values of a row; among equal values, the first comes first.
function topOf(row, count) {
  const found = [];
  for (let i = 0; i < row.length; i++) {
    if (found.length === count && !(row[i] > row[found[count - 1]])) continue;
    let place = found.length;
    while (place && row[found[place - 1]] < row[i]) place--;
    found.splice(place, 0, i);
    found.length = Math.min(found.length, count);
  }
  return found;
}

export const confidence = ({logs}) => logs.reduce((a, b) => a + b, 0) / Math.max(logs.length, 1);

// The log-probability of phrases for each region; common prefixes of phrases are cached and decoded once.
export class PhraseScorer {
  constructor(decoder, embeddings, most = 48) {
    [this.decoder, this.embeddings, this.most, this.kept] = [decoder, embeddings, most, new Map()];
  }

  // Return [log-probabilities (R, V), state] after these words.
  after(tokens) {
    const key = tokens.join(" ");
    if (!this.kept.has(key)) {
      const state = tokens.length ? this.after(tokens.slice(0, -1))[1] : this.decoder.start(this.embeddings);
      const last = tokens.at(-1) ?? START;
      if (this.kept.size >= this.most) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, this.decoder.step(Array(this.embeddings.rows).fill(last), state));
    }
    return this.kept.get(key);
  }

  // Return log P(phrase | region), END included, for each region.
  score(tokens) {
    const totals = new Float64Array(this.embeddings.rows);
    [...tokens, END].forEach((token, place) => {
      const [logs] = this.after(tokens.slice(0, place));
      for (let i = 0; i < totals.length; i++) totals[i] += logs.row(i)[token];
    });
    return totals;
  }
}
