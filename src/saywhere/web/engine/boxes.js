// Boxes: arrays x1, y1, x2, y2 in pixels, with origin 0.

export const area = ([x1, y1, x2, y2]) => Math.max(0, x2 - x1) * Math.max(0, y2 - y1);

export const scale = ([x1, y1, x2, y2], sx, sy) => [x1 * sx, y1 * sy, x2 * sx, y2 * sy];

export function clip([x1, y1, x2, y2], width, height) {
  const within = (value, most) => Math.min(most, Math.max(0, value));
  return [within(x1, width), within(y1, height), within(x2, width), within(y2, height)];
}

export function overlap(a, b) {
  const width = Math.min(a[2], b[2]) - Math.max(a[0], b[0]);
  const height = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  return Math.max(0, width) * Math.max(0, height);
}

export function iou(a, b) {
  const shared = overlap(a, b), union = area(a) + area(b) - shared;
  return union > 0 ? shared / union : 0;
}

// Return the box at offsets from another (DenseCap, Eqs. 1 and 2).
export function decodeBox([x1, y1, x2, y2], [tx, ty, tw, th], maxLogScale) {
  const [xa, ya, wa, ha] = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1];
  const most = maxLogScale ?? Infinity;
  const [x, y] = [xa + tx * wa, ya + ty * ha];
  const [w, h] = [wa * Math.exp(Math.min(tw, most)), ha * Math.exp(Math.min(th, most))];
  return [x - w / 2, y - h / 2, x + w / 2, y + h / 2];
}

// Return the box of an anchor; anchors are ordered by level, row, column and shape.
export function anchorsOf(shapes, sizes, strides) {
  const starts = [];
  let count = 0;
  sizes.forEach(([rows, columns], level) => {
    starts.push(count);
    count += rows * columns * shapes[level].length;
  });
  return (number) => {
    let level = starts.length - 1;
    while (starts[level] > number) level--;
    const kinds = shapes[level], within = number - starts[level], columns = sizes[level][1], stride = strides[level];
    const cell = Math.floor(within / kinds.length), [w, h] = kinds[within % kinds.length];
    const x = ((cell % columns) + 0.5) * stride, y = (Math.floor(cell / columns) + 0.5) * stride;
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2];
  };
}

// Return the indices of the largest values, best first; among equal values, the first wins.
export function best(values, limit = values.length) {
  return Array.from(values, (_, i) => i).sort((a, b) => values[b] - values[a] || a - b).slice(0, limit);
}

// Return the indices of the boxes that survive greedy non-maximum suppression, best first.
export function suppress(boxes, scores, threshold, limit = Infinity) {
  const kept = [], areas = boxes.map(area);
  for (const number of best(scores)) {
    if (kept.length >= limit) break;
    const free = kept.every((other) => {
      const shared = overlap(boxes[number], boxes[other]);
      return !(shared > threshold * (areas[number] + areas[other] - shared));
    });
    if (free) kept.push(number);
  }
  return kept;
}
