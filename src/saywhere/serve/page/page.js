// The page: images, four kinds of questions, and the display of the answers.

import {Pen, colour, drawFile, frameOf, markBox, showAttention, showBoxes} from "./overlay.js";
import {Server} from "./server.js";

const $ = (id) => document.getElementById(id);
$("unstarted").remove(); // the text for browsers in which no script runs
const UNSURE = 0.5; // less probable phrases are pale
const MOST = 100; // maximum number of regions requested
const TABS = ["regions", "find", "sentence", "search"];

const photos = []; // {name, blob, url, tag, regions, drawn, found, caption}
let current = null;
let tab = "regions";
let pinned = null; // number of the clicked item
let webcam = null; // {stream, photo} while it runs
let parts = ["densecap", "aligner", "captioner"]; // the model's parts
let items = []; // the boxes shown: {number, box, label, colour, score}

const server = new Server(askToken);
const pen = new Pen(describeBox);

// Messages

const say = (text) => $("status").textContent === text || ($("status").textContent = text); // announced if it changes
const warn = (text) => ($("alert").textContent = text);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

async function trying(work, name = "image") {
  try {
    warn("");
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") {
      warn(error.message.replace(/^image:/, `${name}:`)); // the server knows no names of files
      say("");
    }
    return null;
  }
}

// Ask for the token; again if the server has refused one.
function askToken(again) {
  const dialog = $("token-dialog");
  $("token-wrong").hidden = !again;
  dialog.showModal();
  return new Promise((resolve, reject) => {
    dialog.onclose = () => reject(new Error("Without its token this server answers nothing. Reload the page to give it."));
    $("token-form").onsubmit = (event) => {
      event.preventDefault();
      resolve($("token").value);
      dialog.close();
    };
  });
}

// Images

function addFiles(files) {
  const fault = ({type, size}) => (type !== "" && !type.startsWith("image/") ? "is not an image" : size ? "" : "is empty");
  const images = files.filter((file) => !fault(file));
  const others = files.filter(fault).map((file) => `${file.name} ${fault(file)}`).join("; ");
  if (!images.length) return warn(others || "That is no file: save the image, and choose or drop the file");
  const added = images.map((blob) => ({name: blob.name || "pasted.png", blob, url: URL.createObjectURL(blob), tag: null, drawn: []}));
  photos.push(...added);
  stopWebcam();
  showPhotos();
  choose(added[0]).then(() => others && warn([$("alert").textContent, others].filter(Boolean).join("; ")));
}

function showPhotos() {
  $("photos").hidden = photos.length < 2;
  $("photos").replaceChildren(...photos.map((photo, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-label", `Image ${i + 1}: ${photo.name}`);
    button.setAttribute("aria-current", photo === current);
    const small = document.createElement("img");
    small.src = photo.url;
    small.alt = "";
    button.append(small);
    button.addEventListener("click", () => choose(photo));
    const entry = document.createElement("li");
    entry.append(button);
    return entry;
  }));
}

function open(photo) {
  current = photo;
  pinned = null;
  document.body.classList.add("asked");
  $("answers").hidden = $("stage").hidden = false;
  $("stage").classList.remove("ready");
  if (tab === "search") selectTab("regions");
}

async function choose(photo) {
  open(photo);
  warn("");
  [...$("photos").querySelectorAll("button")].forEach((b, i) => b.setAttribute("aria-current", photos[i] === photo));
  $("photos").scrollLeft = $("photos").scrollWidth * (photos.indexOf(photo) - 1) / photos.length;
  $("photo").hidden = false;
  $("video").hidden = true;
  $("photo").src = photo.url;
  $("photo").alt = photo.name;
  const shown = await $("photo").decode().then(() => true, () => false);
  if (current !== photo) return;
  if (shown) setRatio($("photo").naturalWidth, $("photo").naturalHeight);
  photo.unseen = !shown;
  show();
  if (!photo.regions) {
    say(`Looking at ${photo.name} …`);
    const began = performance.now();
    await trying(async () => (photo.regions = await describe(photo)), photo.name);
    photo.milliseconds = Math.round(performance.now() - began);
  }
  if (photo.regions && !begun) begin(); // the server did not answer before, or had not got its token
  if (current !== photo || !photo.regions) return;
  setRatio(photo.regions.width, photo.regions.height);
  $("stage").classList.add("ready");
  show();
  await ask(photo);
}

async function describe(photo) {
  if (parts.includes("densecap")) return server.ask("describe", photo, {top: MOST});
  return {width: $("photo").naturalWidth, height: $("photo").naturalHeight, boxes: [], scores: [], captions: []};
}

const setRatio = (width, height) => $("stage").style.setProperty("--ratio", width / height);

// Request the answer that the open tab still lacks.
async function ask(photo) {
  if (tab === "sentence" && !photo.caption) {
    await trying(async () => (photo.caption = await server.ask("caption", photo)), photo.name);
  }
  if (tab === "find" && photo.foundText !== $("text").value) return ground();
  if (current === photo) show();
}

// Regions

function regionItems() {
  const least = Number($("score").value);
  const {boxes = [], scores = [], captions = [], caption_scores: sure = []} = current.regions ?? {};
  const found = boxes.map((box, i) => (
    {number: i, box, label: captions[i] ?? "", score: scores[i], sure: sure[i], colour: colour(i)}
  ));
  const drawn = current.drawn.map((item, i) => ({...item, number: -1 - i, own: true, colour: "#ffffff"}));
  const shown = (item) => item.score === undefined || item.score * (item.sure ?? 1) >= least;
  return [...drawn.reverse(), ...found.filter(shown)];
}

async function describeBox(fractions) {
  stopDrawing();
  const photo = current;
  if (!fractions || !photo?.regions) return;
  const {width, height} = photo.regions;
  const box = fractions.map((value, i) => Math.round(100 * value * (i % 2 ? height : width)) / 100);
  const answer = await trying(() => server.ask("describe", photo, {box: box.join(",")}), photo.name);
  if (!answer || current !== photo) return;
  photo.drawn.push({box: answer.boxes[0], label: answer.captions[0], score: answer.scores?.[0], sure: answer.caption_scores?.[0]});
  selectTab("regions");
  pick(-photo.drawn.length, true);
  say(`Your box: ${answer.captions[0]}`);
}

function stopDrawing() {
  const focused = document.activeElement === $("pen");
  $("draw").setAttribute("aria-pressed", "false");
  $("stage").classList.remove("drawing");
  pen.leave();
  if (focused || document.activeElement === document.body) $("draw").focus({preventScroll: true});
}

// Find

let asked = null;

async function ground() {
  const photo = current, text = $("text").value;
  asked?.abort();
  if (!photo) return;
  if (!/[\p{L}\p{N}]/u.test(text.replace(/^\s*(an?|the)(?!\p{L})/iu, ""))) { // only an article so far
    photo.found = null;
    photo.foundText = text;
    return show();
  }
  asked = new AbortController();
  const answer = await trying(() => server.ask("ground", photo, {text}, {signal: asked.signal}), photo.name);
  if (!answer || current !== photo || $("text").value !== text) return;
  [photo.found, photo.foundText, pinned] = [answer, text, null];
  show();
}

function foundItems() {
  const {boxes = [], captions = [], scores} = current.found ?? {};
  const places = boxes.map(String), different = [...new Set(places)];
  return boxes.map((box, i) => ({
    number: i, box, label: captions[i], score: scores?.[i], colour: colour(different.indexOf(places[i])),
  }));
}

// Return the list entry of a phrase without a box.
function absent(phrase, why) {
  const entry = document.createElement("li");
  entry.className = "absent";
  const note = document.createElement("small");
  note.textContent = why;
  entry.append(phrase, note);
  return entry;
}

// Sentence

function showWord(number) {
  const {boxes, attention, width, height} = current?.caption ?? {};
  [...$("words").children].forEach((word, i) => word.classList.toggle("on", i === number));
  showAttention(boxes ?? [], number === null ? null : attention?.[number], width, height);
}

function showSentence() {
  const {words, caption} = current.caption ?? {};
  $("play").disabled = !words;
  $("words").replaceChildren(...(words ?? (caption ?? "").split(" ")).filter(Boolean).map((word, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = word;
    button.addEventListener("pointerenter", () => showWord(i));
    button.addEventListener("pointerleave", () => showWord(null));
    button.addEventListener("focus", () => showWord(i));
    button.addEventListener("blur", () => showWord(null));
    return button;
  }));
}

let playing = 0;

async function play() {
  const turn = ++playing, photo = current;
  for (let i = 0; i < (photo.caption?.words.length ?? 0); i++) {
    if (turn !== playing || current !== photo || tab !== "sentence") return;
    showWord(i);
    await new Promise((resolve) => setTimeout(resolve, 600));
  }
  if (turn === playing && tab === "sentence") showWord(null);
}

// Search

let looking = 0;

async function search() {
  const turn = ++looking, text = $("query").value.trim();
  const without = $("without").value.trim(), says = (words) => /[\p{L}\p{N}]/u.test(words);
  const empty = !says(text);
  const path = `v1/search?${new URLSearchParams({q: text, top: 24, ...(says(without) && {without})})}`;
  const answer = empty ? {hits: []} : await trying(async () => (await server.get(path)).json());
  if (turn !== looking) return;
  if (!answer) {
    $("search-status").textContent = "";
    return $("hits").replaceChildren();
  }
  $("hits").replaceChildren(...answer.hits.map((hit) => showHit(hit, answer.unlikely)));
  const {unused = [], unknown = {}, judged_as: wider = [], without_noun: whole = []} = answer.hits[0] ?? {}, doubt = answer.probably_not_there;
  const notes = [plural(answer.hits.length, "image")];
  if (doubt) notes.push(`probably not there: ${doubt}`);
  const leftOut = answer.hits[0]?.left_out;
  if (leftOut) notes.push(`${plural(leftOut, "image")} left out because of unwanted things`);
  const strange = Object.entries(unknown).map(([word, other]) => (other ? `${word} (did you mean ${other}?)` : word));
  if (strange.length) notes.push(`words that the model does not know, or hardly: ${strange.join(", ")}`);
  if (wider.length) notes.push(`judged as their kind of thing: ${wider.join(", ")}`);
  if (whole.length) notes.push(`no thing is named, so compared as a whole: ${whole.join(", ")}`);
  if (unused.length) notes.push(`words not used to place phrases: ${unused.join(", ")}`);
  $("search-status").textContent = empty ? "" : notes.join("; ");
}

// Format seconds as a time: 1:02:03.5.
function moment(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  const rest = `${Math.round(seconds % 60 * 1000) / 1000}`.replace(/^\d(?!\d)/, "0$&");
  return `${hours ? `${hours}:${`${minutes}`.padStart(2, "0")}` : minutes}:${rest}`;
}

// Return the list entry of a found image or video frame, with the boxes of its phrases; a click opens it. It is pale if
// the probability that it shows the whole query is below unlikely.
function showHit(hit, unlikely) {
  const name = hit.image.split(/[\\/]/).pop() + (hit.time === undefined ? "" : ` at ${moment(hit.time)}`);
  const button = document.createElement("button");
  button.type = "button";
  const shot = document.createElement("span");
  shot.className = "shot";
  shot.style.aspectRatio = hit.width / hit.height;
  const image = document.createElement("img");
  image.alt = "";
  const frames = hit.phrases.map(({box}, i) => frameOf(box, hit.width, hit.height, colour(i)));
  shot.append(image, ...frames);
  const caption = document.createElement("span");
  caption.className = "caption";
  caption.textContent = name;
  button.append(shot, caption);
  if (hit.probability !== undefined) {
    const chance = document.createElement("small");
    chance.textContent = twoDigits(hit.probability) + (hit.probability < unlikely ? ", probably not" : "");
    chance.setAttribute("aria-label", `probability ${chance.textContent}`);
    button.append(chance);
    button.classList.toggle("unlikely", hit.probability < unlikely);
  }
  const path = `v1/search/image?${new URLSearchParams({entry: hit.entry})}`;
  const gone = (error) => {
    const why = document.createElement("small");
    why.textContent = error.message;
    shot.replaceChildren(why);
    button.classList.add("gone");
    return null;
  };
  const file = server.get(path).then((answer) => answer.blob()).catch(gone);
  file.then((blob) => blob && (image.src = URL.createObjectURL(blob)));
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  button.addEventListener("click", async () => {
    const blob = await file;
    if (!blob) return;
    $("text").value = $("query").value;
    addFiles([new File([blob], name, {type: blob.type})]);
    selectTab("find");
    $("tab-find").focus(); // the hit is hidden now
  });
  const entry = document.createElement("li");
  entry.append(button);
  return entry;
}

// Display

function show() {
  if (!current) return;
  items = tab === "regions" ? regionItems() : tab === "find" ? foundItems() : [];
  const {width, height} = current.found ?? current.regions ?? {width: 1, height: 1};
  showBoxes(items, width, height, {onEnter: hover, onPick: pick});
  if (tab === "regions") list("region-list", items);
  if (tab === "find") {
    list("found-list", items);
    $("found-list").append(...(current.found?.not_found ?? []).map((phrase) => absent(phrase, "not found")));
    $("found-list").append(...(current.found?.unused ?? []).map((words) => absent(words, "not used to place phrases")));
    $("found-list").append(...(current.found?.unknown ?? []).map((word) => absent(word, "the model does not know this word")));
    $("found-list").append(...(current.found?.judged_as ?? []).map((words) => absent(words, "judged as their kind of thing")));
  }
  if (tab === "sentence") showSentence();
  showWord(null);
  $("no-regions").hidden = !current.regions || items.length > 0;
  hover(null);
  if (current.regions && !webcam && tab !== "search") say(summary());
}

// Return the open tab's answer in words, for the status, which screen readers announce; empty before there is one.
function summary() {
  const {name, milliseconds, unseen, regions, found, caption} = current;
  const answers = {
    regions: () => `${items.filter((item) => !item.own).length} of ${plural(regions.boxes.length, "region")} shown, ${milliseconds} ms`,
    find: () => found && [...items.map(({label, score}) => (score === undefined ? label : `${label} ${twoDigits(score)}`)),
      ...(found.not_found ?? []).map((phrase) => `${phrase} not found`)].join(", "),
    sentence: () => caption?.caption,
  };
  const answer = answers[tab]();
  return answer ? `${name}: ${answer}${unseen ? "; this browser cannot show the file" : ""}` : "";
}

// Format a probability: never as 1.00, since no box is certain.
function twoDigits(probability) {
  return Math.min(probability, 0.99).toFixed(2);
}

function list(id, rows) {
  const focused = document.activeElement?.dataset.number;
  $(id).replaceChildren(...rows.map((item) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.number = item.number;
    button.style.setProperty("--colour", item.colour);
    button.setAttribute("aria-pressed", item.number === pinned);
    const words = document.createElement("span");
    words.textContent = (item.own ? "your box: " : "") + item.label;
    const score = document.createElement("small");
    score.textContent = item.score === undefined ? "" : twoDigits(item.score);
    if (item.score !== undefined) score.setAttribute("aria-label", `score ${score.textContent}`);
    button.append(words, score);
    if (item.sure !== undefined) {
      words.classList.toggle("unsure", item.sure < UNSURE);
      score.textContent = `box ${score.textContent}, words ${twoDigits(item.sure)}`;
      score.setAttribute("aria-label", `scores: ${score.textContent}`);
    }
    button.addEventListener("pointerenter", () => hover(item.number));
    button.addEventListener("pointerleave", () => hover(null));
    button.addEventListener("focus", () => hover(item.number));
    button.addEventListener("blur", () => hover(null));
    button.addEventListener("click", () => pick(item.number));
    const entry = document.createElement("li");
    entry.append(button);
    return entry;
  }));
  if (focused !== undefined) $(id).querySelector(`[data-number="${focused}"]`)?.focus({preventScroll: true});
}

// Highlight a box and its phrase; null goes back to the clicked one.
function hover(number) {
  const shown = number ?? pinned;
  markBox(shown);
  for (const button of document.querySelectorAll(".phrases button")) {
    button.classList.toggle("on", Number(button.dataset.number) === shown);
  }
}

function pick(number, always = false) {
  pinned = pinned === number && !always ? null : number;
  for (const button of document.querySelectorAll(".phrases button")) {
    const own = Number(button.dataset.number) === pinned;
    button.setAttribute("aria-pressed", own);
    if (own) button.scrollIntoView({block: "nearest"});
  }
  hover(null);
}

function selectTab(name) {
  tab = name;
  pinned = null;
  for (const other of TABS) {
    $(`tab-${other}`).setAttribute("aria-selected", other === name);
    $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    $(other).hidden = other !== name;
  }
  $("downloads").hidden = name === "search";
  show();
  if (current && !webcam && current.regions) ask(current);
}

// Webcam

async function startWebcam() {
  const stream = await trying(() => navigator.mediaDevices?.getUserMedia({video: {width: {ideal: 640}}})
    ?? Promise.reject(new Error("The webcam only works over HTTPS or with a server on this machine")));
  if (!stream) return;
  const video = $("video");
  const photo = {name: "webcam", tag: null, drawn: []};
  webcam = {stream, photo};
  $("webcam").textContent = "Stop webcam";
  open(photo);
  $("photo").hidden = true;
  video.hidden = false;
  video.srcObject = stream;
  await video.play();
  setRatio(video.videoWidth, video.videoHeight);
  selectTab(tab === "find" ? "find" : "regions");
  while (webcam?.photo === photo) await watch(video, photo);
}

// Answer the question of the open tab for one frame.
async function watch(video, photo) {
  const began = performance.now();
  const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
  canvas.getContext("2d").drawImage(video, 0, 0);
  const frame = {blob: await canvas.convertToBlob({type: "image/jpeg", quality: 0.85}), tag: null};
  const text = $("text").value.trim(), find = tab === "find" && text !== "";
  const answer = await trying(() => server.ask(find ? "ground" : "describe", frame, find ? {text} : {top: 20}, {keep: false}));
  if (webcam?.photo !== photo) return;
  if (!answer) return stopWebcam();
  if (find) photo.found = answer;
  else photo.regions = answer;
  photo.blob = frame.blob;
  show();
  say(`Live, ${Math.round(performance.now() - began)} ms per frame`);
}

function stopWebcam() {
  if (!webcam) return;
  const {stream, photo} = webcam;
  webcam = null;
  for (const track of stream.getTracks()) track.stop();
  $("video").srcObject = null;
  $("webcam").textContent = "Webcam";
  if (!photo.blob) return;
  // Keep the last frame as an image.
  photo.url = URL.createObjectURL(photo.blob);
  photo.name = `webcam-${photos.length + 1}.jpg`;
  photo.regions = photo.found = null;
  photos.push(photo);
  showPhotos();
  choose(photo);
}

// Files

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const stem = () => current.name.replace(/\.[^.]*$/, "");

function saveJson() {
  const answers = {regions: current.regions, find: current.found, sentence: current.caption};
  if (!answers[tab]) return warn("There is no answer to download yet");
  const answer = {...answers[tab], image: current.name};
  if (tab === "regions") {
    Object.assign(answer, {boxes: items.map((i) => i.box), scores: items.map((i) => i.score), captions: items.map((i) => i.label)});
    if (answer.caption_scores) answer.caption_scores = items.map((i) => i.sure);
  }
  save(new Blob([JSON.stringify(answer, null, 1)], {type: "application/json"}), `${stem()}-${tab}.json`);
}

async function saveImage() {
  const {width, height} = current.regions ?? current.found ?? {};
  if (!width) return warn("There is no answer to download yet");
  const heat = $("heat").hidden ? null : $("heat");
  const text = tab === "sentence" ? current.caption?.caption : "";
  const source = $("photo").hidden ? $("video") : $("photo");
  if (source === $("photo") && !source.naturalWidth) return warn("This browser cannot show the file, so it cannot draw on it");
  save(await drawFile(source, items, width, height, heat, text), `${stem()}-${tab}.png`);
}

// Events

$("files").addEventListener("change", (event) => {
  addFiles([...event.target.files]);
  event.target.value = "";
});
for (const button of document.querySelectorAll("#examples button")) {
  button.addEventListener("click", () => trying(async () => {
    const {src, alt} = button.firstElementChild;
    addFiles([new File([await (await fetch(src)).blob()], `${alt}.jpg`, {type: "image/jpeg"})]);
    $(`tab-${tab}`).focus(); // the examples are hidden now
  }));
}
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
document.addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  addFiles([...event.dataTransfer.files]);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) addFiles([...event.clipboardData.files]);
});
$("webcam").addEventListener("click", () => (webcam ? stopWebcam() : startWebcam()));
$("score").addEventListener("input", () => {
  $("score-value").textContent = Number($("score").value).toFixed(2);
  pinned = null;
  show();
});
$("draw").addEventListener("click", (event) => {
  if ($("draw").getAttribute("aria-pressed") === "true") return stopDrawing();
  if (!current?.regions) return;
  $("draw").setAttribute("aria-pressed", "true");
  $("stage").classList.add("drawing");
  if (event.detail === 0) pen.offer(); // pressed with the keyboard
  else $("stage").scrollIntoView({block: "nearest"});
});
let typing = 0;
$("text").addEventListener("input", () => {
  clearTimeout(typing);
  if (!webcam) typing = setTimeout(ground, 120);
});
for (const field of ["query", "without"]) {
  $(field).addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 250);
  });
}
$("play").addEventListener("click", play);
$("save-json").addEventListener("click", saveJson);
$("save-image").addEventListener("click", saveImage);
window.addEventListener("resize", () => current && show());
for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => selectTab(name));
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const shown = TABS.filter((name) => $(`tab-${name}`).offsetParent), at = shown.indexOf(tab);
  const place = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1}[event.key];
  if (place === undefined) return;
  event.preventDefault();
  const next = shown.at(place % shown.length);
  selectTab(next);
  $(`tab-${next}`).focus();
});

// Start

let begun = false;

// Offer what the server's model can do.
async function begin() {
  begun = true;
  const {models: [model], indexed, local, bytes} = await trying(async () => (await server.get("v1/models")).json()) ?? {models: []};
  if (!model) return (begun = false);
  parts = model.parts;
  const where = local ? "Images stay in this browser." : "Images are sent only to the server of this page.";
  $("model").textContent = `Model ${model.name}. ${where}`;
  if (local) $("find-note").textContent = "As you type, the text is split into phrases, each with the box that fits it best, whether it is there or not.";
  const megabytes = (count) => Math.round(count / 1e6);
  server.onBytes = (arrived) => {
    if (current && !current.regions) say(`Loading the model: ${megabytes(arrived)} of ${megabytes(bytes)} MB …`);
  };
  $("tab-regions").hidden = $("draw").hidden = !parts.includes("densecap");
  $("tab-find").hidden = !parts.includes("aligner") && !parts.includes("densecap");
  $("tab-sentence").hidden = !parts.includes("captioner");
  $("tab-search").hidden = !indexed;
  const first = TABS.find((name) => !$(`tab-${name}`).hidden);
  if (!current || $(`tab-${tab}`).hidden) selectTab(indexed && !current ? "search" : first); // an image may have come first
  if (indexed) {
    document.body.classList.add("indexed");
    $("answers").hidden = false;
    $("model").textContent += ` Its index has ${plural(indexed, "image")}.`;
  }
}
await begin();
document.body.dataset.ready = "true";
