// The model: one network, and its questions answered in the browser as in Python.

import {InferenceSession, Tensor, env} from "./ort.mjs";
import {AttentionDecoder} from "./attention.js";
import {scale as scaleBox, clip, iou} from "./boxes.js";
import {
  correct, hasUnlikelySubject, mainPhrase, refusePeople, repeats, see, withoutMonochrome, withoutRepetition, withoutUnlikelyEnding,
  wordProbabilities,
} from "./captions.js";
import {NounEvidence} from "./nouns.js";
import {END, PAD, PhraseScorer, decode} from "./decoding.js";
import {Detector} from "./detection.js";
import {Weights, readFile} from "./files.js";
import {gridFeatures, mapOf} from "./maps.js";
import {layer, layerNorm, linear, relu, stacked} from "./matrix.js";
import {NounTree} from "./noun_tree.js";
import {decodeImage, prepare} from "./pixels.js";
import {Chunker, Vocabulary, tokenize, withUsage, withoutStutter} from "./text.js";

const LEAST = 1e-4; // minimum probability of a kind
const EXTERNAL = "trunk.bin"; // name of the weights file in the graph
const LONGEST = 200; // maximum number of words in a phrase

const here = (name) => new URL(`../model/${name}`, import.meta.url);
const text = (buffer) => new TextDecoder().decode(buffer);
const round = (value, digits) => Math.round(value * 10 ** digits) / 10 ** digits;
const rounded = (boxes) => boxes.map((box) => box.map((value) => round(value, 2)));

export class Model {
  // Read the description of a model; its files are fetched when needed. onBytes(bytes) is called for received bytes.
  static async open(onBytes = () => {}) {
    return new Model(JSON.parse(text(await readFile(here("model.json.gz"), onBytes))), onBytes);
  }

  constructor(info, onBytes) {
    [this.info, this.onBytes, this.parts] = [info, onBytes, info.parts];
    this.files = new Map();
  }

  // Make something from files, once.
  once(name, make) {
    if (!this.files.has(name)) {
      const made = make();
      made.catch(() => this.files.delete(name)); // try again later, the connection may come back
      this.files.set(name, made);
    }
    return this.files.get(name);
  }

  read(name) {
    return readFile(here(name), this.onBytes);
  }

  weights(part) {
    return this.once(part, async () => new Weights(this.info.arrays[part], await this.read(`${part}.bin.gz`)));
  }

  session() {
    return this.once("session", async () => {
      const [runtime, graph, weights] = await Promise.all([
        readFile(new URL("ort.wasm.gz", import.meta.url), this.onBytes), this.read("trunk.onnx.gz"), this.weights("trunk"),
      ]);
      env.wasm.wasmBinary = runtime;
      env.wasm.numThreads = 1; // more need HTTP headers that static files do not have
      env.logLevel = "error";
      const size = this.info.arrays.trunk.reduce((sum, {values}) => sum + values.length, 0), data = new Float32Array(size);
      let place = 0;
      for (const {values} of this.info.arrays.trunk) {
        data.set(values, place);
        place += values.length;
      }
      for (const array of this.info.arrays.trunk) delete array.values; // ONNX Runtime has its own copy
      const external = [{path: EXTERNAL, data: new Uint8Array(data.buffer)}];
      return InferenceSession.create(new Uint8Array(graph), {externalData: external, executionProviders: ["wasm"]});
    });
  }

  detector() {
    return this.once("detector", async () => {
      const {config, vocabulary} = this.info.densecap;
      return new Detector(await this.weights("densecap"), config, new Vocabulary(vocabulary), this.info.calibration);
    });
  }

  tree() {
    return this.once("tree", async () => new NounTree(text(await this.read("nouns.tsv.gz")), this.info.noun_tree));
  }

  // Return the classifier of regions; null if the model has no part "nouns".
  classes() {
    return this.once("class evidence", async () => {
      if (!this.info.nouns) return null;
      const [weights, tree] = await Promise.all([this.weights("nouns"), this.tree()]);
      return new NounEvidence(weights, this.info.nouns.config, this.info.nouns.kinds, tree);
    });
  }

  chunker() {
    return this.once("chunker", async () => {
      const weights = new Weights(this.info.arrays.chunker, await this.read("chunker.bin.gz"));
      return new Chunker(weights.get("weights"), await this.tree());
    });
  }

  // Encode an image, with one pass through the network.
  async encode(blob) {
    const [decoded, session] = await Promise.all([decodeImage(blob), this.session()]);
    const {width, height, pixels, spreads} = prepare(decoded, this.info.preprocess);
    const found = await session.run({pixels: new Tensor("float32", pixels, [1, 3, height, width])});
    const {strides} = this.info.preprocess;
    const maps = (name) => strides.map((stride) => mapOf(found[`${name}${stride}`]));
    return {
      width: decoded.width, height: decoded.height, inputWidth: width, inputHeight: height, strides,
      maps: maps("map"), regions: maps("region"), head: found.head ? mapOf(found.head) : null,
      branch: [16, 32].flatMap((stride) => (found[`branch${stride}`] ? [[mapOf(found[`branch${stride}`]), stride]] : [])),
      logits: found.logits.data, offsets: found.offsets.data, spreads,
    };
  }

  async describe(image, {box, top = 0} = {}) {
    const [detector, classes] = await Promise.all([this.detector(), this.classes()]);
    const detect = (given) => detector.detect(image, given, undefined, null, classes);
    const {regions, embeddings} = box ? detect([inside(box, image)]) : (image.found ??= detect(null));
    const once = (words) => (classes ? withoutRepetition(classes.tree, words) : words);
    const said = regions.map((region) => detector.expect(region, once(region.caption.split(" ")), this.info.noun_tree));
    const clear = (text) => (classes ? withoutStutter(text, this.info.noun_tree.stutter) : text);
    const captions = said.map(({words}) => withUsage(clear(words.join(" ")), this.info.noun_tree));
    const asked = classes && detector.config.nouns && detector.calibration.caption && regions.length;
    const boxes = asked ? regions.map((region) => toInput(region.box, image)) : [];
    const posteriors = asked ? classes.posteriors(image, boxes, embeddings) : null;
    const kept = box ? [0] : detector.rank(regions, captions).slice(0, top || Infinity); // 0: all
    return {
      width: image.width, height: image.height,
      boxes: rounded(kept.map((row) => regions[row].box)),
      scores: kept.map((row) => round(regions[row].score, 5)),
      captions: kept.map((row) => captions[row]),
      ...(detector.calibration.caption ? {caption_scores: kept.map((row) => {
        const sure = detector.sureOf(captions[row], regions[row].sure, said[row].expected, posteriors?.[row], classes);
        return round(sure, 5);
      })} : {}),
    };
  }

  // Return the region of each phrase of a text: the most probable to exist, to have this phrase, and to be of its kind.
  async ground(image, {text: sentence}) {
    const [{start: detector}, classes, chunker, tree] = await Promise.all([this.detector(), this.classes(), this.chunker(), this.tree()]);
    const {score_weight: scoreWeight, kind_weight: kindWeight, bare_kind_share: bareShare} = this.info.grounding;
    const {regions, embeddings, codes} = (image.near ??= this.candidates(detector, image));
    if (!regions.length) throw new Error("the model finds no region in this image");
    image.scorer ??= new PhraseScorer(detector.decoder, codes);
    const captions = chunker.cut(sentence), boxes = regions.map(({box}) => box);
    const known = [detector.vocabulary.numbers, this.readWords()];
    const phrases = captions.map((phrase) => {
      const own = tree.translate(phrase, detector.config);
      return classes ? tree.widenUnread(own, known) : own;
    });
    const nouns = phrases.map((phrase) => (classes ? tree.findKind(phrase) : null));
    if (nouns.some(Boolean)) image.posteriors ??= classes.posteriors(image, boxes.map((box) => toInput(box, image)), embeddings);
    const chosen = phrases.map((phrase, p) => {
      const asked = tokenize(phrase).map((word) => tree.knownForm(word, known[0])).join(" ");
      const tokens = detector.vocabulary.encode(asked);
      if (tokens.length > LONGEST) throw new Error(`a phrase has ${tokens.length} words; the limit is ${LONGEST}`);
      const logs = image.scorer.score(tokens), bare = nouns[p] !== null && tree.isBare(phrase);
      const share = bare ? bareShare : 0, weight = bare ? bareShare : kindWeight, counted = (1 - share) * scoreWeight + share;
      const fits = regions.map(({score}, i) => {
        const kind = nouns[p] ? Math.log(Math.max(classes.probability(image.posteriors[i], nouns[p]), LEAST)) : 0;
        return (1 - share) * logs[i] + counted * Math.log(score) + weight * kind;
      });
      return fits.indexOf(Math.max(...fits));
    });
    const unused = chunker.unused(sentence);
    return {
      width: image.width, height: image.height, boxes: rounded(chosen.map((i) => boxes[i])), captions,
      ...(unused.length ? {unused} : {}),
    };
  }

  // Return the regions to place phrases in, with embeddings and codes: those of the image, and strips of it elsewhere.
  candidates(detector, image) {
    const {nms_iou: most, strips, strip_weight: less, match} = this.info.grounding;
    const ranked = ({regions, embeddings, codes}) => {
      const rows = detector.rank(regions, regions.map(({caption}) => caption), most === null ? undefined : null);
      return {regions: rows.map((row) => regions[row]), embeddings: embeddings.pick(rows), codes: codes.pick(rows)};
    };
    const [found, wide] = [null, strips].map((parts) => ranked(detector.detect(image, null, most ?? undefined, parts)));
    const apart = wide.regions.flatMap(({box}, i) => (found.regions.some((other) => iou(box, other.box) >= match) ? [] : [i]));
    const others = apart.map((i) => ({...wide.regions[i], score: wide.regions[i].score * less}));
    const both = (name) => stacked(found[name], wide[name].pick(apart));
    return {regions: [...found.regions, ...others], embeddings: both("embeddings"), codes: both("codes")};
  }

  // Return the words that the aligner has read.
  readWords() {
    return (this.known ??= new Set(this.info.grounding.words));
  }

  // Return a sentence, and where the model looked for each word.
  async caption(image) {
    const {config, vocabulary} = this.info.captioner, rules = this.info.caption_nouns;
    const [weights, classes] = await Promise.all([this.weights("captioner"), config.nouns && this.info.densecap ? this.classes() : null]);
    const detector = classes && (await this.detector());
    const tell = (image.tell ??= await (async () => {
      const decoder = new AttentionDecoder(weights, "captioner.decoder", config);
      const whole = layerNorm(gridFeatures(image, 1, config).features);
      const {features, boxes} = gridFeatures(image, config.grid, config);
      const regions = relu(linear(layerNorm(features), layer(weights, "captioner.narrow")));
      const bound = decoder.bind(regions), words = new Vocabulary(vocabulary);
      const wordsOf = (tokens) => tokens.filter((token) => token !== END && token !== PAD).map((token) => words.tokens[token]);
      const known = weights.has("captioner.ngrams.keys") ? wordProbabilities(weights, whole) : new Map();
      const refused = (tokens) => Boolean(classes) && repeats(classes.tree, wordsOf(tokens));
      const seen = classes ? see(detector, classes, image, rules) : [];
      const never = classes ? refusePeople(classes, seen, words.tokens, config.people_threshold, rules) : [];
      const told = wordsOf(decode(bound, whole, config.decoding, refused, never)[0].tokens);
      const shown = classes ? correct(classes, seen, told, rules) : told;
      const clear = tokenize(withoutStutter(shown.join(" "), this.info.noun_tree.stutter));
      const single = classes ? withoutRepetition(classes.tree, clear) : shown;
      const once = tokenize(withoutMonochrome(single.join(" "), image.spreads, rules));
      const {least_probability: ending, least_subject: least} = config.ngrams;
      const kept = withoutUnlikelyEnding(await this.tree(), once, words, known, ending);
      const strange = classes && hasUnlikelySubject(classes, seen, kept, words, known, least, rules);
      const phrase = strange ? mainPhrase(await this.describe(image)) : "";
      const usual = withUsage(phrase || kept.join(" "), this.info.noun_tree);
      const said = tokenize((await this.tree()).withSingulars(usual));
      return {words: said, attention: bound.attention(words.encode(said.join(" "))), boxes};
    })());
    const boxes = tell.boxes.map((box) => clip(scaleBox(box, image.width / image.inputWidth, image.height / image.inputHeight), image.width, image.height));
    return {
      width: image.width, height: image.height, caption: tell.words.join(" "), words: tell.words, boxes: rounded(boxes),
      attention: tell.attention.map((row) => row.map((value) => round(value, 5))),
    };
  }
}

const toInput = (box, image) => scaleBox(box, image.inputWidth / image.width, image.inputHeight / image.height);

const inside = (box, {width, height}) => clip(box.split(",").map(Number), width, height);
