// Words, vocabularies, and the phrases of a text.

import {UNKNOWN} from "./decoding.js";

const WORD = /[\p{L}\p{N}]+(?:'[\p{L}\p{N}]+)*/gu;
const normal = (text) => text.normalize("NFKC").replaceAll("’", "'").toLowerCase();

export const tokenize = (text) => normal(text).match(WORD) ?? [];

// Correct "a" and "an" in a text for the next word; `article` is the pattern of text.py.
export const withArticles = (text, article) => text.replace(new RegExp(article, "g"), (_, vowel) => (vowel ? "an" : "a"));

// Correct prepositions, "a" and "an" in a text as text.py does; `lists` are its words and patterns.
export function withUsage(text, lists) {
  const {inside, upon, seated, uncounted, counting, afloat, looking, phrase_ends: ends, article} = lists;
  const words = text.split(" ");
  const areSeated = (before) => {
    const last = before.findLastIndex((word) => seated.includes(word)), between = before.slice(last + 1, -1);
    if (last < 0 || !["sit", "sits", "sitting"].includes(before.at(-1))) return false;
    const joins = (word) => ["that", "who", "is", "are"].includes(word);
    if (!["in", "wearing"].includes(between[0])) return between.every(joins);
    return between.slice(1).every((word) => !ends.includes(word) || joins(word) || ["a", "an", "the", "and"].includes(word));
  };
  const areUpon = (before) => before.findLast((word) => ends.includes(word) && !["a", "an", "the", "and"].includes(word)) === "on";
  for (let start = words.length - 1; start >= 0; start--) {
    if (!["a", "an", "the"].includes(words[start])) continue;
    const next = words.findIndex((word, i) => i > start && ends.includes(word)), stop = next < 0 ? words.length : next;
    const names = [words[stop - 1], words.slice(stop - 2, stop).join(" ")], among = (list) => names.some((name) => list.includes(name));
    const counted = words.slice(start, stop).some((word) => counting.includes(word) || word.endsWith("'s"));
    const bare = words[start] !== "the" && stop - start <= 3 && among(uncounted) && !counted && !["a", "an", "the"].includes(words[stop]);
    if (bare) words.splice(start, 1);
    const before = words[start - 1], nearest = words.slice(Math.max(start - 3, 0), start), long = nearest.join(" ");
    const front = long === "in front of" && !words.slice(0, start).some((word) => afloat.includes(word));
    const top = long === "on top of" || (before === "on" && !nearest.some((word) => looking.includes(word)));
    if (among(inside) && (front || (top && !names.includes("area")))) {
      const from = start - (before === "on" ? 1 : 3);
      words.splice(from, start - from, "in");
    } else if (among(upon) && front && !areUpon(words.slice(0, start - 3))) words.splice(start - 3, 3, "on");
    else if (before === "in" && among(["sidewalk", "tennis court"])) words[start - 1] = "on";
    else if (before === "on" && among(["table", "desk"]) && areSeated(words.slice(0, start - 1))) words[start - 1] = "at";
  }
  const corrected = withArticles(words.join(" "), article);
  return corrected === text ? text : withUsage(corrected, lists);
}

// Remove immediately repeated words from a text; `stutter` is the pattern of text.py.
export const withoutStutter = (text, stutter) => text.replace(new RegExp(stutter, "g"), "$1");

export class Vocabulary {
  constructor(tokens) {
    this.tokens = tokens;
    this.numbers = new Map(tokens.map((token, i) => [token, i]));
  }

  encode(text) {
    return tokenize(text).map((word) => this.numbers.get(word) ?? UNKNOWN);
  }

  // Return the text of token ids up to END; tokens are words.
  decode(ids) {
    return ids.filter((id) => id > UNKNOWN).map((id) => this.tokens[id]).join(" ");
  }
}

const [BEGIN, INSIDE, BEGIN_HIDDEN, INSIDE_HIDDEN, NONE, TAGS] = [1, 2, 3, 4, 9, 5];
const BEFORE = {[INSIDE]: [BEGIN, INSIDE], [INSIDE_HIDDEN]: [BEGIN_HIDDEN, INSIDE_HIDDEN]};

const CRC = Uint32Array.from({length: 256}, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
  return n;
});

function crc32(text) {
  let crc = ~0;
  for (const byte of new TextEncoder().encode(text)) crc = (crc >>> 8) ^ CRC[(crc ^ byte) & 255];
  return ~crc >>> 0;
}

// The tagger of models/chunker.py: an averaged perceptron over hashed features, and the nouns of the tree.
export class Chunker {
  constructor(weights, tree) {
    [this.weights, this.buckets, this.tree] = [weights, weights.length / TAGS, tree];
  }

  // Return the phrases of a text that name something visible, or the text itself.
  cut(text) {
    const words = tokenize(text), phrases = this.phrases(text);
    return phrases.length ? phrases.map(({start, stop}) => words.slice(start, stop).join(" ")) : [text];
  }

  // Return the words between these phrases, which are not used to place them; "and" and the like are left out.
  unused(text) {
    const {joining} = this.tree.lists, phrases = this.phrases(text), runs = [[]];
    if (!phrases.length) return [];
    tokenize(text).forEach((word, i) => {
      if (phrases.some(({start, stop}) => start <= i && i < stop)) runs.push([]);
      else if (runs.at(-1).length || !joining.includes(word)) runs.at(-1).push(word);
    });
    const trimmed = runs.filter((run) => run.length).map((run) => run.slice(0, run.findLastIndex((word) => !joining.includes(word)) + 1));
    return [...new Set(trimmed.map((run) => run.join(" ")))];
  }

  // Return the places of phrases that name something visible.
  phrases(text) {
    const {colours, places, starts} = this.tree.lists, words = tokenize(text);
    const gaps = separated(words, normal(text).split(WORD), colours);
    const found = [];
    const read = words.map((word) => (word === "or" ? "and" : word)); // like models/chunker.py
    this.tag(read, gaps).forEach((tag, i) => {
      if (tag === BEGIN || tag === BEGIN_HIDDEN) found.push({start: i, stop: i + 1, visible: tag === BEGIN});
      else if (BEFORE[tag] && found.length) found.at(-1).stop = i + 1;
    });
    const isPlace = (some) => places.includes(some.at(-1)) && some.every((word) => starts.includes(word) || places.includes(word));
    const ends = (i) => !i || i === words.length || mark(gaps[i]) === ","; // a noun in a list is visible
    const isItem = (start, stop) => ends(start) && ends(stop) && stop - start < words.length && this.tree.head(words.slice(start, stop)).noun;
    return this.parted(joined(this.coloured(this.complete(found, words, gaps), words, gaps), gaps), words, gaps).filter(({start, stop, visible}) => (visible || isItem(start, stop)) && !isPlace(words.slice(start, stop)));
  }

  // Rejoin phrases with nouns of the tree that they were separated from: "a" and "sheep" become "a sheep".
  complete(found, words, gaps) {
    const {after, singular, starts, before_nouns: adjectives} = this.tree.lists, names = this.tree.names(words);
    const isForm = (word) => this.tree.isParticiple(word) || (word.endsWith("ing") && !after.includes(word));
    const reach = (start, participles = false) => {
      const joins = (i) => adjectives.includes(words[i - 1]) || (participles && isForm(words[i - 1]) && !starts.includes(words[i]));
      while (start && mark(gaps[start]) !== "," && joins(start)) start--;
      return start;
    };
    for (const {start: first, stop, plural} of names) {
      if (found.some((phrase) => phrase.start < first && stop <= phrase.stop)) continue;
      const lead = reach(first, true);
      let start = !lead || mark(gaps[lead]) === "," || starts.includes(words[lead]) ? lead : reach(first);
      const before = found.find((phrase) => phrase.stop === start);
      if (before && mark(gaps[start]) !== ",") {
        const unnamed = starts.includes(words[before.start]) && !names.some((name) => before.start <= name.start && name.start < start);
        const isNoun = this.tree.isParticiple(words[start - 1]) || (singular.includes(words[before.start]) && !plural);
        if (starts.includes(words[start - 1]) || (unnamed && isNoun)) start = before.start;
      }
      const touched = found.filter((phrase) => phrase.start < stop && start < phrase.stop);
      if (touched.length && touched[0].start <= start && stop <= touched[0].stop) continue;
      const [firstPart, lastPart] = [start, stop].map((i) => !i || i === words.length || mark(gaps[i]) === ",");
      const follows = ["and", "or"].includes(words[start - 1]) && found.some((phrase) => phrase.stop === start - 1);
      const alone = (firstPart || follows) && (lastPart || [...after, "and", "or"].includes(words[stop]));
      if (!touched.length && !alone && !starts.includes(words[start])) continue;
      const whole = {start: Math.min(start, ...touched.map((phrase) => phrase.start)), stop: Math.max(stop, ...touched.map((phrase) => phrase.stop)), visible: true};
      found = [...found.filter((phrase) => !touched.includes(phrase)), whole].sort((one, other) => one.start - other.start);
    }
    return found;
  }

  // Join a phrase that only says a colour with the next one: "an orange" and "white cat" are one thing.
  coloured(found, words, gaps) {
    const {colours} = this.tree.lists, names = this.tree.names(words).filter((name) => !colours.includes(words[name.stop - 1]));
    const whole = [];
    for (const phrase of found) {
      const before = whole.at(-1), {start, stop} = phrase;
      const between = before && start === before.stop + 1 && ["and", "or"].includes(words[before.stop]) && !mark(gaps[before.stop]) && !mark(gaps[start]);
      const several = between && colours.includes(words[before.stop - 1]) && colours.includes(words[start]) && !colours.includes(words[stop - 1]);
      if (several && !names.some((name) => before.start <= name.start && name.start < before.stop))
        whole[whole.length - 1] = {start: before.start, stop, visible: before.visible || phrase.visible};
      else whole.push(phrase);
    }
    return whole;
  }

  // Split phrases at punctuation between two names of the tree: "dog, cat" becomes two phrases.
  parted(found, words, gaps) {
    const names = this.tree.names(words).filter((name) => !this.tree.lists.colours.includes(words[name.stop - 1]));
    return found.flatMap(({start, stop, visible}) => {
      const last = Math.max(start, ...names.filter((name) => name.stop <= stop).map((name) => name.start));
      const cuts = names.map((name) => name.stop).filter((i) => start < i && i <= last && mark(gaps[i]) === ",");
      return [start, ...cuts].map((first, i) => ({start: first, stop: cuts[i] ?? stop, visible}));
    });
  }

  tag(words, gaps) {
    const padded = ["<", "<", ...words, ">", ">"], marks = gaps.map(mark);
    const tags = [NONE, NONE];
    words.forEach((word, i) => {
      const features = [...around(padded.slice(i, i + 5), marks[i], marks[i + 1]), ...history(tags.slice(-2), word, padded[i + 3])];
      const sums = new Float64Array(TAGS);
      for (const feature of features) {
        const row = TAGS * (crc32(feature) & (this.buckets - 1));
        for (let tag = 0; tag < TAGS; tag++) sums[tag] += this.weights[row + tag];
      }
      for (const [inside, before] of Object.entries(BEFORE)) if (!before.includes(tags.at(-1))) sums[inside] = -Infinity;
      tags.push(sums.indexOf(Math.max(...sums)));
    });
    return tags.slice(2);
  }
}

// Join phrases that end within hyphenated words: "a jack-o-lantern" is one phrase, not two.
function joined(found, gaps) {
  const whole = [];
  for (const phrase of found) {
    let {start, stop, visible} = phrase;
    while (start && gaps[start] === "-") start--;
    while (stop < gaps.length - 1 && gaps[stop] === "-") stop++;
    if (whole.length && start < whole.at(-1).stop) {
      const before = whole.pop();
      start = Math.min(before.start, start);
      visible ||= before.visible;
    }
    whole.push({start, stop, visible});
  }
  return whole;
}

// Replace signs that mean "and" or "or" by commas: "dogs & cats", "cars/bikes", not "H&M" or "red/white".
const separated = (words, gaps, colours) => {
  const isThing = (word) => [...word].length > 2 && /^\p{L}+$/u.test(word) && !colours.includes(word);
  return gaps.map((gap, i) => (i && i < words.length && /[&/|+]/.test(gap) && isThing(words[i - 1]) && isThing(words[i]) ? ", " : gap));
};

const mark = (gap) => (/[,;:.!?()]/.test(gap) ? "," : gap.includes("-") ? "-" : "");

function around([second, left, word, right, fourth], before, after) {
  const last = (text, count) => [...text].slice(-count).join("");
  return [
    "bias", `w ${word}`, `l ${left}`, `r ${right}`, `k ${second}`, `q ${fourth}`,
    `w3 ${last(word, 3)}`, `w2 ${last(word, 2)}`, `l3 ${last(left, 3)}`, `r3 ${last(right, 3)}`,
    `lw ${left} ${word}`, `wr ${word} ${right}`, `lr ${left} ${right}`, `kl ${second} ${left}`, `rq ${right} ${fourth}`,
    `lwr ${left} ${word} ${right}`, `m ${before}${after}`, `mw ${before}|${after} ${word}`,
  ];
}

const history = ([second, last], word, right) => [
  `t ${last}`, `tt ${second}${last}`, `tw ${last} ${word}`, `tr ${last} ${right}`, `ttw ${second}${last} ${word}`,
];
