// Drawing over the image: boxes with labels, attention, and a box drawn by the user; and saving all of it as a file.

const COLOURS = ["#ffd166", "#7bdff2", "#a6ee8f", "#ff9fb2", "#cdb4ff", "#ffb37a", "#8fe3d0", "#f3f373"];
export const colour = (number) => COLOURS[number % COLOURS.length];

const element = (id) => document.getElementById(id);

// Return the frame of a box, to be placed over its width x height image.
export function frameOf([x1, y1, x2, y2], width, height, line) {
  const frame = document.createElement("span");
  frame.className = "box";
  frame.style.setProperty("--colour", line);
  frame.style.left = `${(100 * x1) / width}%`;
  frame.style.top = `${(100 * y1) / height}%`;
  frame.style.width = `${(100 * (x2 - x1)) / width}%`;
  frame.style.height = `${(100 * (y2 - y1)) / height}%`;
  return frame;
}

// Return the labels of items: among items with the same box, the first has the labels of all, the others none.
function labelsOf(items) {
  const words = new Map();
  for (const {box, label} of items) words.set(`${box}`, (words.get(`${box}`) ?? new Set()).add(label));
  return items.map(({box}) => {
    const all = words.get(`${box}`);
    words.delete(`${box}`);
    return all && [...all].join("; ");
  });
}

// Show boxes; items are {number, box, label, colour}, in pixels of a width x height image.
// onEnter(number or null) is called when the pointer enters or leaves, onPick(number) at a click.
export function showBoxes(items, width, height, {onEnter, onPick}) {
  const area = ({box: [x1, y1, x2, y2]}) => (x2 - x1) * (y2 - y1);
  const host = element("boxes");
  const labels = labelsOf(items);
  const shown = items.map((item, i) => {
    const frame = frameOf(item.box, width, height, item.colour);
    const label = document.createElement("span");
    label.textContent = labels[i] ?? item.label;
    label.classList.toggle("unsure", item.sure < 0.5);
    frame.append(label);
    // Not "pointerenter": a box that appears under a resting pointer was not pointed at.
    frame.addEventListener("pointermove", () => onEnter(item.number));
    frame.addEventListener("pointerleave", () => onEnter(null));
    frame.addEventListener("click", () => onPick(item.number));
    frame.dataset.number = item.number;
    return frame;
  });
  const order = items.map((_, i) => i).sort((a, b) => area(items[b]) - area(items[a])); // small boxes on top
  host.replaceChildren(...order.map((i) => shown[i]));
  hideCrowded(shown);
}

// Hide labels that would overlap another; earlier items have priority.
function hideCrowded(frames) {
  const placed = [];
  const stage = element("stage").getBoundingClientRect();
  for (const frame of frames) {
    const label = frame.firstChild;
    label.style.transform = "";
    let place = label.getBoundingClientRect();
    const beyond = place.right - stage.right;
    if (beyond > 0) {
      label.style.transform = `translateX(${-Math.min(beyond, place.left - stage.left)}px)`;
      place = label.getBoundingClientRect();
    }
    const apart = (p) => p.right <= place.left || place.right <= p.left || p.bottom <= place.top || place.bottom <= p.top;
    const free = placed.every(apart);
    frame.classList.toggle("crowded", !free);
    if (free) placed.push(place);
  }
}

// Highlight one box, or none.
export function markBox(number) {
  const host = element("boxes");
  host.classList.toggle("chosen", number !== null);
  for (const frame of host.children) frame.classList.toggle("on", Number(frame.dataset.number) === number);
}

// Darken the image where there is little attention; weights: one per box, or null to show the whole image.
export function showAttention(boxes, weights, width, height) {
  const canvas = element("heat");
  canvas.hidden = !weights;
  if (!weights) return;
  const columns = 96, rows = Math.max(1, Math.round((96 * height) / width));
  canvas.width = columns;
  canvas.height = rows;
  const light = new Float32Array(columns * rows);
  boxes.forEach(([x1, y1, x2, y2], i) => {
    const right = Math.ceil((x2 / width) * columns), bottom = Math.ceil((y2 / height) * rows);
    for (let y = Math.floor((y1 / height) * rows); y < Math.min(bottom, rows); y++) {
      for (let x = Math.floor((x1 / width) * columns); x < Math.min(right, columns); x++) {
        light[y * columns + x] = Math.max(light[y * columns + x], weights[i]);
      }
    }
  });
  const most = light.reduce((a, b) => Math.max(a, b), 1e-9);
  const pixels = new ImageData(columns, rows);
  light.forEach((value, i) => (pixels.data[4 * i + 3] = 190 * (1 - (value / most) ** 0.7)));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// Let the user draw a box by pointer or keyboard; calls done(box as fractions of the image), or done(null) if cancelled.
export class Pen {
  constructor(done) {
    this.stage = element("stage");
    this.pen = element("pen");
    this.done = done;
    this.from = null;
    this.stage.addEventListener("pointerdown", (event) => this.begin(event));
    this.stage.addEventListener("pointermove", (event) => this.drag(event));
    this.stage.addEventListener("pointerup", (event) => this.finish(event));
    this.stage.addEventListener("pointercancel", () => this.leave());
    this.pen.addEventListener("keydown", (event) => this.key(event));
  }

  place([x1, y1, x2, y2]) {
    this.box = [x1, y1, x2, y2];
    Object.assign(this.pen.style, {left: `${100 * x1}%`, top: `${100 * y1}%`, width: `${100 * (x2 - x1)}%`, height: `${100 * (y2 - y1)}%`});
    this.pen.hidden = false;
  }

  // Offer a box in the middle, for the keyboard.
  offer() {
    this.place([0.35, 0.35, 0.65, 0.65]);
    this.pen.focus();
  }

  leave() {
    this.from = null;
    this.pen.hidden = true;
  }

  point(event) {
    const area = this.stage.getBoundingClientRect();
    const inside = (value) => Math.min(1, Math.max(0, value));
    return [inside((event.clientX - area.left) / area.width), inside((event.clientY - area.top) / area.height)];
  }

  begin(event) {
    if (event.button !== 0 || !this.stage.classList.contains("ready")) return;
    if (event.pointerType === "touch" && !this.stage.classList.contains("drawing")) return;
    this.from = this.point(event);
    this.began = [event.clientX, event.clientY];
  }

  drag(event) {
    if (!this.from) return;
    if (this.pen.hidden || !this.stage.hasPointerCapture(event.pointerId)) {
      if (Math.hypot(event.clientX - this.began[0], event.clientY - this.began[1]) < 6) return;
      this.stage.setPointerCapture(event.pointerId);
    }
    const [x, y] = this.point(event), [u, v] = this.from;
    this.place([Math.min(x, u), Math.min(y, v), Math.max(x, u), Math.max(y, v)]);
  }

  finish(event) {
    const drawn = this.from && this.stage.hasPointerCapture(event.pointerId);
    this.from = null;
    if (!drawn) return;
    const [x1, y1, x2, y2] = this.box;
    this.pen.hidden = true;
    this.done(x2 - x1 > 0.005 && y2 - y1 > 0.005 ? this.box : null);
  }

  key(event) {
    const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    if (event.key in steps) {
      const [dx, dy] = steps[event.key].map((step) => step * 0.02);
      let [x1, y1, x2, y2] = this.box;
      if (event.shiftKey) {
        x2 = Math.min(1, Math.max(x1 + 0.02, x2 + dx));
        y2 = Math.min(1, Math.max(y1 + 0.02, y2 + dy));
      } else {
        const mx = Math.min(1 - x2, Math.max(-x1, dx)), my = Math.min(1 - y2, Math.max(-y1, dy));
        [x1, y1, x2, y2] = [x1 + mx, y1 + my, x2 + mx, y2 + my];
      }
      this.place([x1, y1, x2, y2]);
    } else if (event.key === "Enter") {
      this.pen.hidden = true;
      this.done(this.box);
    } else if (event.key === "Escape") {
      this.pen.hidden = true;
      this.done(null);
    } else {
      return;
    }
    event.preventDefault();
  }
}

// Return where a plate of wide x high pixels hides the least of other plates and of boxes, as place_labels of drawing.py.
function place([x1, y1, x2, y2], wide, high, line, boxes, taken, {width, height}) {
  const right = x2 - wide, middle = (x1 + right) / 2, [above, top, below, bottom] = [y1 - high, y1 + line, y2, y2 - high - line];
  const corners = (outer, inner) => [[outer, above], [inner, top], [outer, below], [inner, bottom]];
  const spots = [corners(x1, x1 + line), corners(right, right - line), corners(middle, middle)].flat();
  for (const t of [0.25, 0.5, 0.75]) for (const x of [x1 + line, right - line, middle]) spots.push([x, y1 + (y2 - y1 - high) * t]);
  for (const y of [y1 - 2 * high, y2 + high]) spots.push([x1, y], [right, y]);
  const inside = (value, most) => Math.round(Math.max(0, Math.min(value, most)));
  const common = ([a, b, c, d], [e, f, g, h]) => Math.max(0, Math.min(c, g) - Math.max(a, e)) * Math.max(0, Math.min(d, h) - Math.max(b, f));
  let best, least = Infinity;
  spots.forEach(([left, up], i) => {
    const x = inside(left, width - wide), y = inside(up, height - high), plate = [x, y, x + wide, y + high];
    let hidden = 0.005 * i;
    for (const other of taken) hidden += common(plate, other) / (wide * high);
    for (const box of boxes) hidden += 0.2 * common(plate, box) / Math.max(1, (box[2] - box[0]) * (box[3] - box[1]));
    if (hidden < least) [best, least] = [plate, hidden];
  });
  return best;
}

// Return a PNG of the image as shown.
export function drawFile(source, items, width, height, heat, text) {
  const canvas = document.createElement("canvas");
  canvas.width = source.naturalWidth || source.videoWidth || width;
  canvas.height = source.naturalHeight || source.videoHeight || height;
  const pen = canvas.getContext("2d");
  const scale = canvas.width / width;
  const size = Math.max(12, Math.round(Math.max(canvas.width, canvas.height) / 45));
  const line = size / 7, margin = size * 0.6, row = size * 1.35;
  pen.drawImage(source, 0, 0, canvas.width, canvas.height);
  if (heat) pen.drawImage(heat, 0, 0, canvas.width, canvas.height);
  pen.font = `${size}px system-ui, sans-serif`;
  pen.textBaseline = "top";
  const widest = (lines) => Math.ceil(Math.max(...lines.map((words) => pen.measureText(words).width)) + margin);
  const broken = (words, most) => {
    const lines = [];
    for (const word of words.split(" ")) {
      const longer = `${lines.at(-1)} ${word}`;
      if (lines.length && widest([longer]) <= most) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  };
  const label = (lines, [left, top, right, bottom], back, unsure = false) => {
    pen.globalAlpha = unsure ? 0.5 : 1;
    pen.fillStyle = back;
    pen.fillRect(left, top, right - left, bottom - top);
    pen.fillStyle = "#000";
    lines.forEach((words, i) => pen.fillText(words, left + margin / 2, top + i * row + size * 0.17));
    pen.globalAlpha = 1;
  };
  const boxes = items.map(({box}) => box.map((value) => value * scale));
  items.forEach((item, i) => {
    const [x1, y1, x2, y2] = boxes[i];
    for (const [colour, thick] of [["#0009", size / 4], [item.colour, line]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      pen.strokeRect(x1, y1, x2 - x1, y2 - y1);
    }
  });
  const plates = [];
  labelsOf(items).forEach((words, i) => {
    if (!words) return;
    const lines = broken(words, Math.min(canvas.width, Math.max(boxes[i][2] - boxes[i][0], canvas.width / 3, 6 * row)));
    const spot = place(boxes[i], widest(lines), Math.ceil(row * lines.length), line, boxes, plates.map((plate) => plate[1]), canvas);
    plates.push([lines, spot, items[i].colour, items[i].sure < 0.5]);
  });
  for (const plate of plates.reverse()) label(...plate); // the best on top
  const lines = text ? broken(text, canvas.width) : [];
  if (text) label(lines, [0, canvas.height - row * lines.length, widest(lines), canvas.height], "#fff");
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
