// The classifier of regions, and its use for the nouns of phrases: models/nouns.py in the browser.

import {Matrix, layer, linear, softmax} from "./matrix.js";
import {classFeatures} from "./maps.js";
import {nearest} from "./noun_tree.js";

const LEAST = 1e-4, PLACE = 5;

export class NounEvidence {
  constructor(weights, config, kinds, tree) {
    [this.config, this.tree] = [config, tree];
    this.imagenet = layer(weights, "nouns.imagenet");
    this.taught = layer(weights, "nouns.kinds");
    this.kinds = kinds.map((name) => tree.named(name));
    const numbers = new Map(this.kinds.map((kind, number) => [kind.row, number]));
    this.groups = tree.nouns.filter((noun) => noun.sort === "class").map((noun) => {
      const near = [...noun.ancestors].filter(([row]) => numbers.has(row)).map(([row, steps]) => [steps, numbers.get(row)]);
      return near.length ? nearest(near)[1] : this.kinds.length;
    });
    this.known = Array(this.kinds.length + 1).fill(false);
    for (const group of this.groups) this.known[group] = true;
    const leaves = tree.nouns.slice(0, tree.leaves).map((noun) => tree.entry(noun));
    this.said = [...new Map(leaves.filter((noun) => noun && noun.sort !== "group").map((noun) => [noun.row, noun])).values()];
    const columns = new Map(this.said.map((noun, column) => [noun.row, column]));
    this.columns = leaves.map((noun) => (noun ? columns.get(noun.row) : undefined));
  }

  // Return the probabilities (K) of the tree's leaves for each box, in pixels of the network's input, with its embedding.
  posteriors(image, boxes, embeddings) {
    const {config} = this, {channels} = image.head, own = config.embed_dim ? embeddings : null;
    const features = classFeatures(image, boxes, config, own), ofBranch = config.branch ? branchSize(image) : 0;
    const behind = channels + config.embed_dim + PLACE + 2 * ofBranch;
    const last = new Matrix(boxes.length, channels), end = features.columns - behind;
    for (let i = 0; i < boxes.length; i++) last.row(i).set(features.row(i).subarray(end - channels, end));
    return this.combine(linear(last, this.imagenet), linear(features, this.taught));
  }

  combine(classes, kinds) {
    const {temperature, trust, sharpness, rest} = this.config, count = this.kinds.length;
    const ofClass = softmax(classes.map((value) => value / temperature));
    return Array.from({length: classes.rows}, (_, i) => {
      const row = ofClass.row(i), ofGroup = new Float64Array(count + 1);
      row.forEach((value, k) => (ofGroup[this.groups[k]] += value));
      const logits = kinds.row(i).map((value, k) => {
        const evidence = this.known[k] ? Math.log(Math.max(ofGroup[k], LEAST)) : 0;
        return (value + trust * evidence) * sharpness;
      });
      const ofKind = softmax(new Matrix(1, logits.length, logits)).data;
      const scale = ofGroup.map((value, k) => ofKind[k] / (value + rest));
      const posterior = new Float64Array(this.tree.leaves);
      row.forEach((value, k) => (posterior[k] = value * scale[this.groups[k]]));
      this.kinds.forEach((kind, k) => (posterior[kind.row] += scale[k] * rest));
      return posterior;
    });
  }

  // Return whether the classifier was taught a noun, or one that it is a kind of.
  knows(noun) {
    this.taughtRows ??= new Set(this.kinds.map((kind) => kind.row));
    return [...noun.ancestors].some(([row]) => this.taughtRows.has(row));
  }

  probability(posterior, noun) {
    return noun.leaves.reduce((sum, leaf) => sum + posterior[leaf], 0);
  }

  // Return the most probable kind or class, [noun, probability].
  name(posterior) {
    const sums = new Float64Array(this.said.length);
    posterior.forEach((value, leaf) => this.columns[leaf] !== undefined && (sums[this.columns[leaf]] += value));
    const most = this.said[sums.indexOf(Math.max(...sums))];
    return [most, this.probability(posterior, most)];
  }
}

const branchSize = ({branch}) => branch.reduce((sum, [{channels}]) => sum + channels, 0);
