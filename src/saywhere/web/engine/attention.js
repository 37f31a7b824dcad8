// The decoder with attention to regions, Areas of Attention (section 3.2, Eqs. 4 to 7), of one image.

import {Matrix, gruStep, largest, layer, linear, logSoftmax, product, recurrent} from "./matrix.js";
import {START} from "./decoding.js";

const LIMIT = 60; // where sums of exponentials in single precision stay exact

export class AttentionDecoder {
  constructor(weights, name, {terms}) {
    const has = (term) => terms.includes(term);
    const of = (part) => layer(weights, `${name}.${part}`);
    this.begin = of("begin");
    this.words = of("words").weight;
    this.gru = recurrent(weights, `${name}.gru`);
    this.wordState = has("word-state") ? of("word_state") : null;
    this.wordRegion = has("word-region") ? of("word_region") : null;
    this.wordBias = has("word") ? weights.get(`${name}.word_bias`) : null;
    this.regionBias = has("region") ? weights.get(`${name}.region_bias`) : null;
  }

  // The decoder of an image with regions (R, D).
  bind(regions) {
    return new BoundDecoder(this, regions);
  }

  // The part of the score of words (K, V) in the states (K, H).
  wordScores(states) {
    const scores = this.wordState ? linear(states, this.wordState) : new Matrix(states.rows, this.words.columns);
    if (this.wordBias) scores.data.forEach((_, i) => (scores.data[i] += this.wordBias[i % this.words.columns]));
    return linear(scores, {weight: this.words});
  }

  // The part of the score of regions (R), the same in all states.
  regionScores(regions) {
    if (!this.regionBias) return new Float32Array(regions.rows);
    return linear(new Matrix(1, regions.columns, this.regionBias), {weight: regions}).data;
  }
}

class BoundDecoder {
  constructor(decoder, regions) {
    [this.decoder, this.scores] = [decoder, decoder.regionScores(regions)];
    if (!decoder.wordRegion) return;
    // The word-region part m of the score (Eq. 5), less the largest of each word.
    this.table = linear(linear(regions, decoder.wordRegion), {weight: decoder.words});
    this.peak = new Float32Array(this.table.columns).fill(-Infinity);
    for (let r = 0; r < regions.rows; r++) this.table.row(r).forEach((m, w) => (this.peak[w] = Math.max(this.peak[w], m)));
    let lowest = 0;
    for (let r = 0; r < regions.rows; r++) {
      const row = this.table.row(r);
      for (let w = 0; w < row.length; w++) lowest = Math.min(lowest, (row[w] -= this.peak[w]));
    }
    this.wide = -lowest > LIMIT;
    this.known = this.ofRegions();
  }

  start(embeddings) {
    return [linear(embeddings, this.decoder.begin)];
  }

  step(tokens, [hidden]) {
    const {decoder, known} = this, words = decoder.words.pick(tokens);
    const state = gruStep(linear(words, decoder.gru.input), decoder.gru, hidden);
    const scores = decoder.wordScores(state);
    if (known) scores.data.forEach((_, i) => (scores.data[i] += known[i % known.length]));
    return [logSoftmax(scores), [state]];
  }

  // ln sum_r exp(c(r) + m(w, r)) (V), what regions add to the score of words.
  ofRegions() {
    const {scores, table, peak} = this, top = scores[largest(scores)];
    if (this.wide && top - scores.reduce((a, b) => Math.min(a, b), top) > LIMIT) {
      return peak.map((high, w) => high + logSumExp(scores.map((value, r) => value + table.row(r)[w])));
    }
    const weights = new Matrix(1, scores.length, scores.map((value) => Math.exp(value - top)));
    return product(weights, table.map(Math.exp)).data.map((sum, w) => Math.log(sum) + peak[w]);
  }

  // ln p(r | h) (1, R) in one state, the marginal of Eq. 4.
  logRegions(state) {
    const sums = new Matrix(1, this.scores.length, this.scores.slice());
    if (this.table) {
      const heights = this.decoder.wordScores(state).row(0).map((value, w) => value + this.peak[w]);
      for (let r = 0; r < sums.columns; r++) sums.data[r] += logSumExp(this.table.row(r).map((value, w) => value + heights[w]));
    }
    return logSoftmax(sums);
  }

  // p(r | h) (R) at each of the tokens of a sentence.
  attention(embedding, tokens) {
    let state = this.start(embedding);
    return tokens.map((_, i) => {
      state = this.step([i ? tokens[i - 1] : START], state)[1];
      return Array.from(this.logRegions(state[0]).data, Math.exp);
    });
  }
}

function logSumExp(values) {
  const top = values[largest(values)];
  let sum = 0;
  for (const value of values) sum += Math.exp(value - top);
  return top + Math.log(sum);
}
