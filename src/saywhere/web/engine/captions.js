// The nouns of captions: models/caption_nouns.py in the browser.

import {related} from "./noun_tree.js";
import {scale} from "./boxes.js";
import {Matrix, layer, linear, relu} from "./matrix.js";
import {tokenize} from "./text.js";

// Return the probabilities of the noun tree's leaves for each of the first regions of an image.
export function see(detector, classes, image, {regions, least_region: least, thin}) {
  const {proposals, embeddings, logits} = detector.start.look(image);
  const [across, down] = [image.width / image.inputWidth, image.height / image.inputHeight];
  const rows = proposals.slice(0, regions).flatMap((box, row) => {
    const [x1, y1, x2, y2] = scale(box, across, down);
    const wide = x2 - x1 >= thin * image.width && y2 - y1 >= thin * image.height;
    return logits[row] > Math.log(least / (1 - least)) && wide ? [row] : [];
  });
  return rows.length ? classes.posteriors(image, rows.map((row) => proposals[row]), embeddings.pick(rows)) : [];
}

// Return the tokens of words for people, which are excluded from captions if the image shows nobody; otherwise none.
export function refusePeople(classes, posteriors, tokens, least, {of_people: others}) {
  const person = classes.tree.named("person");
  if (posteriors.some((row) => classes.probability(row, person) >= least) || !least) return [];
  const ofPeople = (word) => others.includes(word) || classes.tree.named(word)?.ancestors.has(person.row);
  return tokens.flatMap((word, token) => (ofPeople(word) ? [token] : []));
}

// Return the things that regions surely show, the most probable first.
function sureThings(classes, posteriors, sure) {
  const found = posteriors.map((row) => classes.name(row)).filter((one) => one[1] > sure);
  return [...new Set(found.sort((a, b) => b[1] - a[1]).map(([noun]) => noun))];
}

// Return whether a sentence begins with a noun that neither words' probabilities, by token id, nor regions expect.
export function hasUnlikelySubject(classes, posteriors, words, vocabulary, probabilities, least, {sure}) {
  if (!least || !probabilities.size) return false;
  const head = classes.tree.head(words), known = head.stop > head.start ? vocabulary.encode(words[head.stop - 1]) : [];
  if (known.length === 1 && probabilities.get(known[0]) >= least) return false;
  if (!head.noun) return true;
  const ofPeople = (noun) => noun?.ancestors.has(classes.tree.named("person").row);
  const isLikely = ([id, likely]) => likely >= least && ofPeople(classes.tree.named(vocabulary.tokens[id]));
  const shown = sureThings(classes, posteriors, sure).some((thing) => related(head.noun, thing));
  return !shown && !(ofPeople(head.noun) && [...probabilities].some(isLikely));
}

// Return the phrase that says most about an image, as densecap.py does; empty if there is none.
export function mainPhrase({width, height, boxes, scores, captions, caption_scores: sure}) {
  const worth = boxes.map(([x1, y1, x2, y2], i) => {
    return (((x2 - x1) * (y2 - y1)) / (width * height)) ** 0.25 * scores[i] * (sure?.[i] ?? 1);
  });
  return captions[worth.indexOf(Math.max(...worth))] ?? "";
}

// Return the words of a caption whose nouns the image shows, as far as the classifier knows.
export function correct(classes, posteriors, words, {unseen, sure, listed}) {
  const {tree} = classes, person = tree.named("person"), ofPeople = (noun) => noun.ancestors.has(person.row);
  const heads = tree.heads(words), things = sureThings(classes, posteriors, sure);
  if (!heads.length || !things.length) return words;
  const nouns = heads.map(({noun}) => noun), said = [...words];
  const untaught = (noun) => noun.sort === "kind" && !classes.kinds.includes(noun); // the classifier knows nothing about it
  const shown = (noun) => untaught(noun) || posteriors.some((row) => classes.probability(row, noun) >= unseen);
  const seen = nouns.map((noun) => shown(ofPeople(noun) ? person : noun));
  for (let number = heads.length - 1; number >= 0; number--) {
    const head = heads[number], old = nouns[number];
    if (seen[number] || ofPeople(old)) continue;
    const fits = (noun) => tree.alike(old, noun) && !nouns.some((other) => related(noun, other));
    const noun = things.find(fits);
    if (!noun) continue;
    const before = Math.max(head.start - 1, 0), moved = {...head, start: head.start - before, stop: head.stop - before};
    said.splice(before, head.stop - before, ...tokenize(tree.withNoun(moved, said.slice(before, head.stop), noun)));
    [nouns[number], seen[number]] = [noun, true];
  }
  if (seen.some(Boolean)) return said;
  const kept = [];
  for (const noun of things) if (kept.length < listed && !kept.some((other) => related(noun, other))) kept.push(noun);
  const nothing = {start: 0, stop: 0, noun: null, plural: false};
  return kept.map((noun) => tree.withNoun(nothing, [], noun)).join(" and ").split(" ");
}

// Remove "black and white" before "photo" from a text if the image has colours.
export function withoutMonochrome(text, spreads, {monochrome, spread, coloured}) {
  const share = spreads.filter((value) => value >= spread).length / spreads.length;
  return share >= coloured ? text.replace(new RegExp(monochrome, "g"), "") : text;
}

// Return where a text would have to end in order to name nothing twice; 0 if it names nothing twice.
function repeated(tree, words) {
  const {others, determined, loose, colours} = tree.lists, heads = tree.heads(words);
  const named = new Set(), said = new Map(), cuts = [];
  const following = new Map(heads.map(({start, noun}) => [start, noun])), before = new Map(heads.map(({stop, noun}) => [stop, noun]));
  const again = heads.findIndex(({noun, start, stop}) => {
    if ((following.get(stop) ?? noun) !== noun) return false;
    if (named.has(noun.row) && !words.slice(Math.max(start - 2, 0), start).some((word) => others.includes(word))) return true;
    named.add(noun.row);
    return false;
  });
  if (again > 0) cuts.push(heads[again - 1].stop);
  const joins = (i) => words[i] === "and" && [words[i - 1], words[i + 1]].every((word) => !word || colours.includes(word));
  words.some((word, start) => {
    if (!determined.includes(word)) return false;
    const isNext = (i) => i > start + 1 || (i > start && determined.includes(words[i]));
    const next = words.findIndex((each, i) => isNext(i) && loose.includes(each) && !joins(i));
    const stop = next < 0 ? words.length : next, last = words[stop - 1];
    if (last.endsWith("ing")) return false;
    const noun = before.get(stop), alike = said.get(last) ?? [];
    const known = alike.some((one) => !noun || !one || related(noun, one)) && !words.slice(start, stop).some((each) => others.includes(each));
    const kept = tree.withoutLooseEnd(words, start);
    if (known && kept) cuts.push(kept);
    said.set(last, [...alike, noun]);
    return known;
  });
  return cuts.length ? Math.min(...cuts) : 0;
}

export const repeats = (tree, words) => repeated(tree, words) > 0;

// Return the words of a text up to where it names a thing again.
export const withoutRepetition = (tree, words) => words.slice(0, repeated(tree, words) || words.length);

// Return how many words to keep so that a text ends with a part that the image or region probably shows. The first part
// stays; each later one begins with a preposition, but "of", or a word in -ing.
export function likelyLength(words, probable, least, {after, function_words: passive}) {
  let [best, most, total, first] = [words.length, 0, 0, true];
  words.forEach((word, place) => {
    const begins = place > 1 && ((after.includes(word) && word !== "of") || word.endsWith("ing"));
    if (begins && (first || total > most)) [best, most] = [place, total];
    first &&= !begins;
    if (!first && probable[place] !== undefined && !passive.includes(word)) total += probable[place] - least;
  });
  return first || total >= most ? words.length : best;
}

// Return the words of a sentence up to the last part that the image probably shows; likely are probabilities by token id.
export function withoutUnlikelyEnding(tree, words, vocabulary, likely, least) {
  const stop = likelyLength(words, words.map((word) => likely.get(vocabulary.encode(word)[0])), least, tree.lists);
  return words.slice(0, stop === words.length ? stop : tree.withoutLooseEnd(words, stop));
}

// Return the log-odds (N, words) of a part's common words for N images or regions, and their token ids.
export function wordOdds(weights, part, features) {
  const name = (end) => `${part}.ngrams.${end}`, hidden = weights.has(name("hidden.weight"));
  const inputs = hidden ? relu(linear(features, layer(weights, name("hidden")))) : features;
  const query = linear(inputs, layer(weights, name("query"))), offsets = weights.get(name("offsets"));
  const keys = new Matrix(offsets.length, query.columns, weights.get(name("keys")));
  return {odds: linear(query, {weight: keys, bias: offsets}), ids: Array.from(weights.get(name("token_ids")))};
}

// Return the probability of each common word for an image, by its token id.
export function wordProbabilities(weights, embedding) {
  const {odds, ids} = wordOdds(weights, "captioner", embedding);
  return new Map(ids.map((id, i) => [id, 1 / (1 + Math.exp(-odds.data[i]))]));
}
