// The decoder with attention to the regions of one image, Areas of Attention (section 3.2, Eqs. 4 to 7).

import {Matrix, gruStep, largest, layer, linear, logSoftmax, product, recurrent} from "./matrix.js";

const LIMIT = 60; // limit within which sums of exponentials in single precision stay exact

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

  // Make the decoder for an image with regions (R, D).
  bind(regions) {
    return new BoundDecoder(this, regions);
  }

  // Return the word part of the score (K, V) in the states (K, H).
  wordScores(states) {
    const scores = this.wordState ? linear(states, this.wordState) : new Matrix(states.rows, this.words.columns);
    if (this.wordBias) scores.data.forEach((_, i) => (scores.data[i] += this.wordBias[i % this.words.columns]));
    return linear(scores, {weight: this.words});
  }

  // Return the region part of the score (R), the same in all states.
  regionScores(regions) {
    if (!this.regionBias) return new Float32Array(regions.rows);
    return linear(new Matrix(1, regions.columns, this.regionBias), {weight: regions}).data;
  }
}

class BoundDecoder {
  constructor(decoder, regions) {
    [this.decoder, this.scores] = [decoder, decoder.regionScores(regions)];
    if (!decoder.wordRegion) return;
    // The word-region part m of the score (Eq. 5), minus its maximum for each word.
    this.table = linear(linear(regions, decoder.wordRegion), {weight: decoder.words});
    const peak = new Float32Array(this.table.columns).fill(-Infinity);
    for (let r = 0; r < regions.rows; r++) this.table.row(r).forEach((m, w) => (peak[w] = Math.max(peak[w], m)));
    let lowest = 0;
    for (let r = 0; r < regions.rows; r++) {
      const row = this.table.row(r);
      for (let w = 0; w < row.length; w++) lowest = Math.min(lowest, (row[w] -= peak[w]));
    }
    this.known = this.ofRegions(peak, -lowest > LIMIT);
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

  // Return ln sum_r exp(c(r) + m(w, r)) (V), the regions' contribution to the score of words.
  ofRegions(peak, wide) {
    const {scores, table} = this, top = scores[largest(scores)];
    if (wide && top - scores.reduce((a, b) => Math.min(a, b), top) > LIMIT) {
      return peak.map((high, w) => high + logSumExp(scores.map((value, r) => value + table.row(r)[w])));
    }
    const weights = new Matrix(1, scores.length, scores.map((value) => Math.exp(value - top)));
    return product(weights, table.map(Math.exp)).data.map((sum, w) => Math.log(sum) + peak[w]);
  }

  // Return p(r | w, h) (R) for each token of a sentence, the same in all states.
  attention(tokens) {
    return tokens.map((token) => {
      const sums = this.scores.map((value, r) => value + (this.table ? this.table.row(r)[token] : 0));
      return Array.from(logSoftmax(new Matrix(1, sums.length, sums)).data, Math.exp);
    });
  }
}

function logSumExp(values) {
  const top = values[largest(values)];
  let sum = 0;
  for (const value of values) sum += Math.exp(value - top);
  return top + Math.log(sum);
}
