// Names of things and their hypernyms: models/nouns.py in the browser.

import {tokenize, withArticles} from "./text.js";

export class NounTree {
  // Lines of the table: synset, sort, name, use, words, synsets above, separated by tabs; and the word lists of nouns.py.
  // Names in lines without a synset have no node.
  constructor(table, words) {
    this.lists = words;
    const lines = table.trimEnd().split("\n").map((line) => line.split("\t")), rows = lines.filter(([synset]) => synset);
    const numbers = new Map(rows.map(([synset], i) => [synset, i]));
    const above = rows.map((row) => row[5].split(/\s+/).filter(Boolean).map((synset) => numbers.get(synset)));
    this.nouns = rows.map(([, sort, name, use], row) => ({row, sort, name, use, ancestors: ancestorsOf(row, above), leaves: []}));
    this.leaves = this.nouns.filter((noun) => noun.sort !== "group").length;
    for (const leaf of this.nouns.slice(0, this.leaves)) for (const up of leaf.ancestors.keys()) this.nouns[up].leaves.push(leaf.row);
    this.words = new Map();
    for (const line of lines) for (const word of line[4].split(", ").filter(Boolean)) this.words.set(word, [numbers.get(line[0]) ?? null, false]);
    for (const [word, [row]] of [...this.words]) {
      for (const many of this.plurals(word)) if (!this.words.has(many)) this.words.set(many, [row, true]);
    }
  }

  named(word) {
    return this.nouns[this.words.get(word)?.[0]] ?? null;
  }

  // Return the nearest node at or above one whose name is in common use.
  entry(noun) {
    const near = [...noun.ancestors].filter(([row]) => this.nouns[row].use).map(([row, steps]) => [steps, row]);
    return near.length ? this.nouns[nearest(near)[1]] : null;
  }

  plural(name) {
    return this.plurals(name)[0];
  }

  // Return the plurals of a noun, the usual one first.
  plurals(name) {
    const space = name.lastIndexOf(" "), before = name.slice(0, space + 1), last = name.slice(space + 1);
    const {irregular, compounds} = this.lists, several = [], end = compounds.find((end) => last.endsWith(end));
    if (Object.hasOwn(irregular, last)) several.push(irregular[last]);
    else if (end) several.push(last.slice(0, -end.length) + irregular[end]);
    if (several.length && !/(o|us)$/.test(last)) return several.map((form) => before + form);
    if (/(s|x|ch|sh)$/.test(last)) several.push(`${last}es`);
    else if (last.endsWith("y") && !"aeiou".includes(last.slice(-2, -1))) several.push(`${last.slice(0, -1)}ies`);
    else several.push(`${last}s`);
    if (last.endsWith("o")) several.push(`${last}es`);
    return [...new Set(several)].map((form) => before + form);
  }

  // Return the words of which a word is a plural by its form, the likeliest first.
  singulars(word) {
    const forms = Object.entries(this.lists.irregular).filter(([, many]) => many === word).map(([name]) => name);
    const twice = /(buses|ches|ies|shes|sses|xes)$/.test(word);
    const cuts = [[2, "an"], [3, "f"], [3, "fe"], [3, ""], [0, ""], ...(twice ? [[3, "y"], [2, ""], [1, ""]] : [[1, ""], [2, ""]])];
    for (const [cut, end] of cuts) forms.push(word.slice(0, Math.max(word.length - cut, 0)) + end);
    return [...new Set(forms)].filter((form) => form && this.plurals(form).includes(word));
  }

  // Return a word if it is known (known.has(word)), otherwise its singular, its plural, or "cat" for "cat's", if known.
  knownForm(word, known) {
    const forms = [word, ...this.singulars(word), this.plural(word), word.replace(/'s$/, "")];
    return forms.find((form) => known.has(form)) ?? word;
  }

  // Replace a known plural after "a" in a text by the singular: "a long mast" for "a long masts".
  withSingulars(text) {
    const words = text.split(" "), {phrase_ends: ends, counting, starts} = this.lists, counters = [...counting, ...starts];
    words.forEach((word, start) => {
      if (!["a", "an"].includes(word)) return;
      const next = words.findIndex((other, i) => i > start && ends.includes(other)), stop = next < 0 ? words.length : next;
      const last = words[stop - 1], counts = (other) => counters.includes(other) || other.endsWith("'s") || this.named(other);
      if (stop - 1 <= start || !this.words.get(last)?.[1] || words.slice(start + 1, stop - 1).some(counts)) return;
      words[stop - 1] = this.singulars(last)[0];
    });
    return words.join(" ");
  }

  // Return where words before stop end if they do not end like "a dog that is" or "a dog in the middle of".
  withoutLooseEnd(words, stop) {
    const {loose, sides} = this.lists;
    const isLoose = (word, i) => loose.includes(word) || (sides.includes(word) && ["in", "on", "the"].includes(words[i - 1]));
    return words.findLastIndex((word, i) => i < stop && !isLoose(word, i)) + 1;
  }

  // Return the head noun of a phrase and its place: {start, stop, noun, plural}.
  head(words) {
    const whole = this.ending(words, 0, words.length);
    if (whole && whole.start <= 1) return whole;
    let stop = words.findIndex((_, i) => i >= 1 && this.ends(words, i));
    if (stop < 0) stop = words.length;
    let found = this.ending(words, 0, stop);
    for (let last = stop - 1; !found && last > 0 && (words[last].endsWith("ly") || this.isParticiple(words[last])); last--) found = this.ending(words, 0, last);
    if (words[stop] === "of" && (!found?.noun || this.isAmount(words[stop - 1]))) {
      const inner = this.head(words.slice(stop + 1));
      if (inner.noun) return {...inner, start: inner.start + stop + 1, stop: inner.stop + stop + 1};
    }
    return found ?? {start: Math.max(stop - 1, 0), stop, noun: null, plural: stop > 0 && words[stop - 1].endsWith("s")};
  }

  isParticiple(word) {
    return word.endsWith("ed") || this.lists.participles.includes(word);
  }

  // Return whether a phrase's noun precedes the word at `place`: "a dog running", but not "a running dog".
  ends(words, place) {
    const {after, articles, before_nouns: adjectives} = this.lists;
    const word = words[place];
    const next = words[place + 1];
    if (word === "and" || word === "or") return articles.includes(next);
    if (!word.endsWith("ing")) return after.includes(word);
    const before = words.slice(0, place);
    if (this.words.has(word) || before.every((one) => adjectives.includes(one) || one.endsWith("ing"))) return false;
    return after.includes(word) || articles.includes(next) || after.includes(next) || this.ending(words, 0, place) !== null;
  }

  // Return the longest name that ends at `stop`.
  ending(words, start, stop) {
    for (let first = Math.max(start, stop - 4); first < stop; first++) {
      const head = this.nameAt(words, first, stop);
      if (head) return head;
    }
    return null;
  }

  // Look up words as a name: {start, stop, noun, plural}.
  nameAt(words, start, stop) {
    const name = words.slice(start, stop).join(" "), found = stop <= words.length ? this.words.get(name) : null;
    return found ? {start, stop, noun: this.named(name), plural: found[1]} : null;
  }

  // Return the names in a text and their places, in order, preferring longer names. The noun of one without a node is null.
  names(words) {
    const found = [];
    for (let start = 0; start < words.length;) {
      let head = null;
      for (let stop = start + this.lists.longest; stop > start && !head; stop--) head = this.nameAt(words, start, stop);
      if (head) found.push(head);
      start = head ? head.stop : start + 1;
    }
    return found;
  }

  // Return the names that have a noun.
  heads(words) {
    return this.names(words).filter(({noun}) => noun);
  }

  // Return whether both are kinds of the same thing.
  alike(one, other) {
    return [...one.ancestors.keys()].some((row) => other.ancestors.has(row));
  }

  // Replace the noun of a phrase: adjectives stay if both nouns are kinds of the same thing, otherwise only the article.
  withNoun(head, words, noun) {
    const alike = head.noun && this.alike(head.noun, noun);
    const first = words.slice(0, Math.min(head.start, 1));
    let before = alike ? words.slice(0, head.start) : first.filter((word) => this.lists.neutral_determiners.includes(word));
    const after = alike ? words.slice(head.stop) : [];
    const name = head.plural && noun.use === "count" ? this.plural(noun.name) : noun.name;
    const single = noun.use === "count" && name === noun.name;
    if (before[0] === "a" || before[0] === "an") before = single ? before : before.slice(1);
    else if (!before.length && single) before = ["a"];
    return withArticles([...before, name, ...after].join(" "), this.lists.article);
  }

  // Return whether a word, or its singular, is an amount: "flocks" in "two flocks of gulls".
  isAmount(word) {
    this.amounts ??= new Set(this.lists.amounts);
    return this.amounts.has(this.knownForm(word, this.amounts));
  }

  find(phrase) {
    return this.head(tokenize(phrase)).noun;
  }

  // Return the place of the noun of a phrase that is only known as a kind of something, and the noun; or undefined.
  narrow(words) {
    this.narrower ??= new Map(Object.entries(this.lists.narrower));
    const {start, noun} = this.head(words), of = words.indexOf("of", 1);
    let places = noun ? [] : [start];
    if (of > 0) {
      const inner = this.head(words.slice(of + 1)), amount = this.isAmount(words[of - 1]);
      places = amount && !inner.noun ? [of + 1 + inner.start] : [of - 1, ...places];
    }
    const forms = places.filter((place) => place < words.length).map((place) => [place, this.knownForm(words[place], this.narrower)]);
    return forms.find(([, form]) => this.narrower.has(form));
  }

  // Return find(phrase), or else what its noun is a kind of: "bird" for "a sparrow".
  findKind(phrase) {
    const words = tokenize(phrase), found = this.narrow(words);
    return found ? this.named(this.narrower.get(found[1])) : this.head(words).noun;
  }

  // Return whether a phrase says nothing but its noun, and that is no role such as nurse.
  isBare(phrase) {
    const words = tokenize(phrase), {start, stop, noun} = this.head(words);
    const alone = stop === words.length && ["", "a", "an", "the", "some"].includes(words.slice(0, start).join(" "));
    return alone && noun !== null && (noun.name !== "person" || this.lists.somebody.includes(words.slice(start).join(" ")));
  }

  // Replace such a noun by its kind if it is in none of the vocabularies: "a truck" for "a lorry".
  widenUnread(phrase, vocabularies) {
    const words = tokenize(phrase), found = this.narrow(words);
    if (!found || vocabularies.some((known) => known.has(this.knownForm(found[1], known)))) return phrase;
    const [place, form] = found, kind = this.narrower.get(form);
    const other = words[place] === form ? kind : this.plural(kind);
    return withArticles([...words.slice(0, place), other, ...words.slice(place + 1)].join(" "), this.lists.article);
  }

  // Replace a noun of the user's own names in a phrase by what the other parts of the model call such things.
  translate(phrase, {own_names: names}) {
    const pairs = Object.entries(names).sort(([one], [other]) => other.split(" ").length - one.split(" ").length);
    if (!pairs.length) return phrase;
    const words = tokenize(phrase), {stop} = this.head(words);
    for (const [name, meaning] of pairs) {
      for (const [own, other] of [[name, meaning], ...this.plurals(name).map((many) => [many, this.plural(meaning)])]) {
        const start = stop - own.split(" ").length;
        if (start >= 0 && words.slice(start, stop).join(" ") === own) {
          return withArticles([...words.slice(0, start), other, ...words.slice(stop)].join(" "), this.lists.article);
        }
      }
    }
    return phrase;
  }
}

function ancestorsOf(row, above) {
  const steps = new Map([[row, 0]]);
  for (const [one, count] of steps) for (const up of above[one]) if (!steps.has(up)) steps.set(up, count + 1);
  return steps;
}

export const nearest = (pairs) => pairs.reduce((a, b) => (b[0] < a[0] || (b[0] === a[0] && b[1] < a[1]) ? b : a));

export const related = (one, other) => other.ancestors.has(one.row) || one.ancestors.has(other.row);
