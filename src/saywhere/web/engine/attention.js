// The decoder with attention to regions, Areas of Attention (section 3.2, Eqs. 4 to 7), of one image.

import {Matrix, gruStep, largest, layer, linear, logSoftmax, product, recurrent, sideBySide} from "./matrix.js";
import {START} from "./decoding.js";

const LIMIT = 60; // where sums of exponentials in single precision stay exact

export class AttentionDecoder {
  constructor(weights, name, {terms, feedback}) {
    const has = (term) => terms.includes(term);
    const of = (part) => layer(weights, `${name}.${part}`);
    this.feedback = feedback;
    this.begin = of("begin");
    this.words = of("words").weight;
    this.gru = recurrent(weights, `${name}.gru`);
    this.wordState = has("word-state") ? of("word_state") : null;
    this.wordRegion = has("word-region") ? of("word_region") : null;
    this.regionState = has("region-state") ? of("region_state") : null;
    this.wordBias = has("word") ? weights.get(`${name}.word_bias`) : null;
    this.regionBias = has("region") ? weights.get(`${name}.region_bias`) : null;
  }

  // The decoder of an image with regions (R, D).
  bind(regions) {
    return new BoundDecoder(this, regions);
  }

  // The parts of the score of words (K, V) and of regions (K, R).
  parts(states, regions) {
    const sum = (part, bias, width) => {
      const scores = part ? linear(states, part) : new Matrix(states.rows, width);
      if (bias) for (let i = 0; i < scores.data.length; i++) scores.data[i] += bias[i % width];
      return scores;
    };
    const word = sum(this.wordState, this.wordBias, this.words.columns);
    const region = sum(this.regionState, this.regionBias, regions.columns);
    return [linear(word, {weight: this.words}), linear(region, {weight: regions})];
  }
}

class BoundDecoder {
  constructor(decoder, regions) {
    [this.decoder, this.regions] = [decoder, regions];
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
    this.exp = this.table.map(Math.exp);
  }

  start(embeddings) {
    return [linear(embeddings, this.decoder.begin)];
  }

  step(tokens, [hidden]) {
    const {decoder} = this, words = decoder.words.pick(tokens);
    const inputs = decoder.feedback === "none" ? words : sideBySide([words, this.seen(tokens, hidden)]);
    const state = gruStep(linear(inputs, decoder.gru.input), decoder.gru, hidden);
    return [this.logWords(decoder.parts(state, this.regions)), [state]];
  }

  // What is seen of the image: regions by their weights (Eq. 6).
  seen(tokens, hidden) {
    const {decoder, regions} = this, parts = decoder.parts(hidden, regions);
    if (decoder.feedback === "marginal") return product(this.logRegions(parts).map(Math.exp), regions);
    const scores = parts[1];
    if (decoder.wordRegion) {
      const given = linear(decoder.words.pick(tokens), {weight: linear(regions, decoder.wordRegion)});
      given.data.forEach((value, i) => (scores.data[i] += value));
    }
    return product(logSoftmax(scores).map(Math.exp), regions);
  }

  // ln p(w | h) (K, V), the marginal of Eq. 4.
  logWords([words, regions]) {
    if (!this.table) return logSoftmax(words);
    const sums = new Matrix(words.rows, words.columns);
    for (let k = 0; k < words.rows; k++) {
      const row = regions.row(k), top = row[largest(row)], out = sums.row(k);
      const spread = top - row.reduce((a, b) => Math.min(a, b), top);
      if (this.wide && spread > LIMIT) {
        for (let w = 0; w < out.length; w++) out[w] = logSumExp(row.map((value, r) => value + this.table.row(r)[w]));
      } else {
        const weights = new Matrix(1, row.length, row.map((value) => Math.exp(value - top)));
        out.set(product(weights, this.exp).data.map(Math.log));
      }
      for (let w = 0; w < out.length; w++) out[w] += words.row(k)[w] + this.peak[w];
    }
    return logSoftmax(sums);
  }

  // ln p(r | h) (K, R), the marginal of Eq. 4.
  logRegions([words, regions]) {
    if (!this.table) return logSoftmax(regions);
    const sums = new Matrix(regions.rows, regions.columns);
    for (let k = 0; k < regions.rows; k++) {
      const heights = words.row(k).map((value, w) => value + this.peak[w]);
      for (let r = 0; r < regions.columns; r++) {
        sums.row(k)[r] = regions.row(k)[r] + logSumExp(this.table.row(r).map((value, w) => value + heights[w]));
      }
    }
    return logSoftmax(sums);
  }

  // p(r | h) (R) at each of the tokens of a sentence.
  attention(embedding, tokens) {
    let state = this.start(embedding);
    return tokens.map((_, i) => {
      state = this.step([i ? tokens[i - 1] : START], state)[1];
      return Array.from(this.logRegions(this.decoder.parts(state[0], this.regions)).data, Math.exp);
    });
  }
}

function logSumExp(values) {
  const top = values[largest(values)];
  let sum = 0;
  for (const value of values) sum += Math.exp(value - top);
  return top + Math.log(sum);
}
