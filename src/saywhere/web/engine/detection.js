// Finding, describing and selecting regions: models/densecap.py in the browser.

import {anchorsOf, best, clip, decodeBox, iou, scale, suppress} from "./boxes.js";
import {likelyLength, wordOdds} from "./captions.js";
import {LstmDecoder, confidence, decode} from "./decoding.js";
import {contextFeatures, pool} from "./maps.js";
import {layer, linear, relu, sigmoid} from "./matrix.js";
import {tokenize} from "./text.js";

const SHOWN = 0.25; // regions with a lower score are shown only on demand
const SMALLEST = 1e-6; // fraction of the image that a box covers, at least
const LEAST_EXPECTED = 1e-4; // minimum probability of a word of a phrase, as evidence
const OWN_LEAST = 0.1; // least probability of what a user's own word is a kind of, so that a region gets the word
const UNTAUGHT = 0.1, LEAST_NOUN = 0.01; // probability of a noun that the classifier was not taught; minimum of any noun

// Return the natural logarithm of the fraction of the image that a box covers.
const logArea = (image, [x1, y1, x2, y2]) =>
  Math.log(Math.max(((x2 - x1) / image.width) * ((y2 - y1) / image.height), SMALLEST));

export class Detector {
  constructor(weights, config, vocabulary, calibration, layers = "densecap") {
    [this.config, this.vocabulary, this.calibration] = [config, vocabulary, calibration];
    this.decoder = new LstmDecoder(weights, `${layers}.decoder`);
    this.weights = weights;
    this.own = new Map(Object.entries(config.own_words)); // a user's own words, each with what it is a kind of
    const head = (name) => layer(weights, `densecap.region_head.${name}`);
    [this.first, this.second, this.offset] = ["layers.1", "layers.4", "offset"].map(head);
    this.score = layers === "densecap" ? head("score") : layer(weights, `${layers}.score`);
    if (config.phrase_levels.length) {
      this.phrase = layer(weights, `${layers}.phrase_head.2`);
      [this.scale, this.shift] = ["scale", "shift"].map((name) => weights.get(`${layers}.phrase_head.${name}`));
    }
    // The detector from before fine-tuning, which phrases are found with.
    const isFirst = config.finetuned && layers === "densecap";
    this.start = isFirst ? new Detector(weights, config, vocabulary, calibration, "densecap.start") : this;
  }

  // Return the regions of an image, or these boxes in its pixels: [{box, logit, caption, sure}], their embeddings, and the
  // codes that captions are decoded from. Of regions that overlap by more than an IoU of most, only the best is kept.
  // Instead of the proposals of the network, the regions can come from parts of the image, in shares of its sides.
  // With classes, a region gets a user's own word only if it probably shows what this is a kind of.
  detect(image, given = null, most = this.config.final_nms, parts = null, classes = null) {
    const sides = [image.inputWidth, image.inputHeight, image.inputWidth, image.inputHeight];
    const inside = parts?.map((part) => part.map((share, i) => share * sides[i]));
    const {proposals, embeddings, logits} = inside ? this.embed(image, inside) : this.look(image, given);
    const {boxes, rows} = given ? {boxes: given, rows: given.map((_, i) => i)} : this.select(image, proposals, embeddings, logits, most);
    const chosen = embeddings.pick(rows);
    const features = this.features(image, boxes, chosen), codes = this.codes(features);
    const {logit, confidence: ofSure, area: ofArea, constant} = this.calibration.box;
    const odds = rows.map((row, i) => logit * logits[row] + ofArea * logArea(image, boxes[i]) + constant); // without the phrase
    const shown = odds.filter((each) => sigmoid(each) >= SHOWN).length;
    const few = given ? rows.length : Math.min(this.config.beam_regions ?? Infinity, shown);
    const sentences = this.say(codes, odds, few, this.refused(image, boxes, chosen, classes));
    const regions = rows.map((row, i) => ({
      box: boxes[i], logit: logits[row], caption: this.vocabulary.decode(sentences[i].tokens), sure: confidence(sentences[i]),
    }));
    if (this.weights.has("densecap.ngrams.keys") && rows.length) {
      const {odds, ids} = wordOdds(this.weights, "densecap", features);
      regions.forEach((region, i) => (region.likely = new Map(ids.map((id, k) => [id, sigmoid(odds.row(i)[k])]))));
    }
    regions.forEach((region, i) => (region.score = sigmoid(odds[i] + ofSure * region.sure)));
    return {regions, embeddings: chosen, codes};
  }

  // Decode the regions' phrases: by beam search for the few whose boxes are most probable, greedily for the others.
  // Each region has the tokens that it does not get.
  say(codes, odds, few, refused) {
    const {decoding} = this.config, sentences = Array(codes.rows), order = best(odds);
    const groups = [[order.slice(0, few), decoding], [order.slice(few), {...decoding, beam_size: 1}]];
    for (const [some, settings] of groups) {
      const alike = new Map(); // regions that do not get the same words, decoded together
      for (const row of some) alike.set(`${refused[row]}`, [...(alike.get(`${refused[row]}`) ?? []), row]);
      for (const rows of alike.values()) {
        const found = decode(this.decoder, codes.pick(rows), settings, undefined, refused[rows[0]]);
        found.forEach((sentence, i) => (sentences[rows[i]] = sentence));
      }
    }
    return sentences;
  }

  // Return the tokens of a user's own words that each region does not get: it hardly shows what they, or names with them, mean.
  refused(image, boxes, embeddings, classes) {
    if (!this.own.size || !classes || !boxes.length) return boxes.map(() => []);
    const names = Object.entries(this.config.own_names);
    const meant = [...this.own].flatMap(([word, kind]) => {
      const of = kind ? [kind] : names.filter(([name]) => name.split(" ").includes(word)).map(([, meaning]) => meaning);
      const nouns = of.map((each) => classes.tree.named(each));
      return nouns.length && nouns.every((noun) => noun && classes.knows(noun)) ? [[this.vocabulary.encode(word)[0], nouns]] : [];
    });
    const inputs = boxes.map((box) => scale(box, image.inputWidth / image.width, image.inputHeight / image.height));
    return classes.posteriors(image, inputs, embeddings).map((row) => meant
      .filter(([, nouns]) => nouns.every((noun) => classes.probability(row, noun) < OWN_LEAST)).map(([token]) => token));
  }

  // Return the features from which phrases are written, for boxes in pixels of the image, with their embeddings.
  features(image, boxes, embeddings) {
    if (!this.phrase) return embeddings;
    const inputs = boxes.map((box) => scale(box, image.inputWidth / image.width, image.inputHeight / image.height));
    return contextFeatures(image, inputs, this.config.phrase_levels, embeddings);
  }

  // Return the decoder's inputs for boxes with these features.
  codes(features) {
    if (!this.phrase) return features;
    const standard = features.pick(Array.from({length: features.rows}, (_, i) => i));
    for (let i = 0; i < standard.rows; i++) standard.row(i).forEach((value, k, row) => (row[k] = value * this.scale[k] + this.shift[k]));
    return relu(linear(standard, this.phrase));
  }

  // Return the words of a region's phrase up to the last part that the region probably shows, and the mean natural
  // log-probability of these words.
  expect({likely}, words, {after, function_words: passive}) {
    if (!likely) return {words, expected: 0};
    const probable = words.map((word) => (this.own.has(word) ? undefined : likely.get(this.vocabulary.encode(word)[0])));
    const kept = likelyLength(words, probable, this.config.ngrams.least_probability, {after, function_words: passive});
    const logs = probable.slice(0, kept).flatMap((p, i) => (p === undefined || passive.includes(words[i]) ? [] : [Math.log(Math.max(p, LEAST_EXPECTED))]));
    return {words: words.slice(0, kept), expected: logs.length ? logs.reduce((sum, log) => sum + log) / logs.length : 0};
  }

  // Return proposals, or these boxes in pixels of the image, in pixels of the network's input, with embeddings and logits.
  look(image, given = null) {
    if (given) return this.embed(image, given.map((box) => scale(box, image.inputWidth / image.width, image.inputHeight / image.height)));
    image.looked ??= this.embed(image, this.propose(image));
    return {...image.looked, logits: this.logits(image.looked.embeddings)}; // another detector may have looked
  }

  embed(image, proposals) {
    const pooled = pool(image.regions, image.strides, proposals, this.config.pool_size);
    const embeddings = relu(linear(relu(linear(pooled, this.first)), this.second));
    return {proposals, embeddings, logits: this.logits(embeddings)};
  }

  logits(embeddings) {
    return linear(embeddings, this.score).data;
  }

  // Return the best proposals, in pixels of the network's input (section 3.1.2).
  propose(image) {
    const {proposals, max_log_scale: most} = this.config;
    const sizes = image.regions.map(({rows, columns}) => [rows, columns]);
    const anchor = anchorsOf(proposals.anchors, sizes, image.strides);
    const found = best(image.logits, proposals.pre_nms_top_n ?? undefined).map((number) => {
      const box = decodeBox(anchor(number), image.offsets.subarray(4 * number, 4 * number + 4), most);
      return {box: clip(box, image.inputWidth, image.inputHeight), logit: image.logits[number]};
    }).filter(({box: [x1, y1, x2, y2]}) => x2 - x1 >= 1 && y2 - y1 >= 1);
    const boxes = found.map(({box}) => box);
    const kept = suppress(boxes, found.map(({logit}) => logit), proposals.nms_iou, proposals.post_nms_top_n);
    return kept.map((number) => boxes[number]);
  }

  // Return the final boxes in pixels of the image, and the indices of their proposals.
  select(image, proposals, embeddings, logits, most) {
    const offsets = linear(embeddings, this.offset);
    const boxes = proposals.map((proposal, i) => {
      const box = decodeBox(proposal, offsets.row(i), this.config.max_log_scale);
      return clip(scale(box, image.width / image.inputWidth, image.height / image.inputHeight), image.width, image.height);
    });
    const rows = suppress(boxes, logits, most).filter((row) => {
      const [x1, y1, x2, y2] = boxes[row];
      return x2 > x1 && y2 > y1;
    });
    return {boxes: rows.map((row) => boxes[row]), rows};
  }

  // Return the probability that a phrase names what is in its box.
  sureOf(caption, sure, expected, posterior, classes) {
    const {confidence: ofSure, noun: ofNoun, known: ofKnown, expected: ofExpected, constant} = this.calibration.caption;
    const ofWords = ofSure * sure + ofExpected * expected + constant;
    if (!posterior) return sigmoid(ofWords);
    const words = tokenize(caption), word = words.findLast((each) => this.own.has(each));
    const noun = word ? classes.tree.named(this.own.get(word)) : classes.tree.head(words).noun;
    const known = Boolean(noun) && classes.knows(noun);
    const likely = Math.log(Math.max(known ? classes.probability(posterior, noun) : UNTAUGHT, LEAST_NOUN));
    return sigmoid(ofWords + ofNoun * likely + (known ? ofKnown : 0));
  }

  // Return the indices of the regions to keep, best first; of overlapping regions with the same phrase, only the best.
  rank(regions, captions, repeatNms = this.config.repeat_nms) {
    const most = repeatNms ?? 1, kept = [];
    for (const number of best(regions.map(({score}) => score))) {
      const repeats = (other) => captions[other] === captions[number] && iou(regions[number].box, regions[other].box) > most;
      if (!kept.some(repeats)) kept.push(number);
    }
    return kept;
  }
}
