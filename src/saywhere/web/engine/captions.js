// Which nouns a caption has: models/captioner.py in the browser.

import {related} from "./noun_tree.js";
import {scale} from "./boxes.js";
import {tokenize} from "./text.js";

// What the first regions of an image show: the probabilities of the leaves of the tree of nouns for each.
export function see(detector, classes, image, {regions, least_region: least}) {
  const {proposals, embeddings, logits} = detector.look(image);
  const [across, down] = [image.width / image.inputWidth, image.height / image.inputHeight];
  const rows = proposals.slice(0, regions).flatMap((box, row) => {
    const [x1, y1, x2, y2] = scale(box, across, down);
    return logits[row] > Math.log(least / (1 - least)) && x2 > x1 && y2 > y1 ? [row] : [];
  });
  return rows.length ? classes.posteriors(image, rows.map((row) => proposals[row]), embeddings.pick(rows)) : [];
}

// The words of a caption whose nouns the image shows, as far as the classes know.
export function correct(classes, posteriors, words, {unseen, sure, listed}) {
  const {tree} = classes, person = tree.named("person"), ofPeople = (noun) => noun.ancestors.has(person.row);
  const heads = tree.heads(words), found = posteriors.map((row) => classes.name(row, sure)).filter((one) => one && one[0].sort !== "group");
  const things = [...new Set(found.sort((a, b) => b[1] - a[1]).map(([noun]) => noun))];
  if (!heads.length || !things.length) return words;
  const nouns = heads.map(({noun}) => noun), said = [...words];
  const untaught = (noun) => noun.sort === "kind" && !classes.kinds.includes(noun); // of which nothing is known
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

// The number of the first noun of a sentence that it has named before, but for "another man"; -1 if there is none.
function repeated(words, heads, others) {
  const named = new Set();
  return heads.findIndex(({noun, start}) => {
    const again = named.has(noun.row) && !words.slice(Math.max(start - 2, 0), start).some((word) => others.includes(word));
    named.add(noun.row);
    return again;
  });
}

export const repeats = (tree, words, {others}) => repeated(words, tree.heads(words), others) >= 0;

// The words of a sentence up to where it names a thing again.
export function withoutRepetition(tree, words, {others}) {
  const heads = tree.heads(words), number = repeated(words, heads, others);
  return number > 0 ? words.slice(0, heads[number - 1].stop) : words;
}
