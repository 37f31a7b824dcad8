// Region features from the feature maps of an image.

import {Matrix, sideBySide} from "./matrix.js";

// Return a map of the graph: {data (C, H, W), channels, rows, columns}.
export function mapOf({dims, data}) {
  return {data, channels: dims[1], rows: dims[2], columns: dims[3]};
}

// Sample a grid of size x size points in each box, at the level for the box's size (DenseCap, Eq. 3): (N, size^2 C).
export function pool(levels, strides, boxes, size) {
  const channels = levels[0].channels, points = size * size;
  const tables = levels.map(cellsFirst);
  const pooled = new Matrix(boxes.length, points * channels);
  boxes.forEach((box, number) => {
    const side = Math.sqrt(Math.max(box[2] - box[0], 0) * Math.max(box[3] - box[1], 0));
    const level = strides.slice(1).filter((stride) => side >= 8 * stride).length;
    const {rows, columns} = levels[level], cells = tables[level];
    const [x1, y1, x2, y2] = box.map((value) => value / strides[level] - 0.5);
    const across = neighbours(x1, x2, size, columns), down = neighbours(y1, y2, size, rows);
    const out = pooled.row(number);
    for (let v = 0; v < size; v++) {
      for (let u = 0; u < size; u++) {
        const place = (v * size + u) * channels;
        for (const [row, high] of down[v]) {
          for (const [column, wide] of across[u]) {
            const weight = high * wide, cell = (row * columns + column) * channels;
            for (let c = 0; c < channels; c++) out[place + c] += weight * cells[cell + c];
          }
        }
      }
    }
  });
  return pooled;
}

// Return a map (C, H, W) as (H W, C).
function cellsFirst({data, channels, rows, columns}) {
  const area = rows * columns, cells = new Float32Array(data.length);
  for (let c = 0; c < channels; c++) for (let i = 0; i < area; i++) cells[i * channels + c] = data[c * area + i];
  return cells;
}

// Return, for each point from low to high, its existing neighbour cells with their weights.
function neighbours(low, high, size, length) {
  return Array.from({length: size}, (_, i) => {
    const place = low + (high - low) * (size > 1 ? i / (size - 1) : 0), left = Math.floor(place), share = place - left;
    return [[left, 1 - share], [left + 1, share]].filter(([cell, weight]) => cell >= 0 && cell < length && weight);
  });
}

// Return the position of boxes: corners and area as fractions of the image, (N, 5).
function place(boxes, width, height) {
  const rows = new Matrix(boxes.length, 5);
  boxes.forEach(([x1, y1, x2, y2], i) => {
    const [a, b, c, d] = [x1 / width, y1 / height, x2 / width, y2 / height];
    rows.row(i).set([a, b, c, d, Math.max(c - a, 0) * Math.max(d - b, 0)]);
  });
  return rows;
}

// Return the weighted mean of a map for each region, given its weights of rows and columns: (N, C).
function means({data, channels, rows, columns}, regions) {
  const found = new Matrix(regions.length, channels), area = rows * columns;
  regions.forEach(({down, across}, number) => {
    const out = found.row(number);
    for (let c = 0; c < channels; c++) {
      let sum = 0;
      for (const [y, high] of down) for (const [x, wide] of across) sum += high * wide * data[c * area + y * columns + x];
      out[c] = sum;
    }
  });
  return found;
}

// Return the fraction of an interval in each cell.
function shares(low, high, cells) {
  const found = [];
  for (let i = Math.max(0, Math.floor(low)); i < Math.min(cells, Math.ceil(high)); i++) {
    const length = Math.min(high, i + 1) - Math.max(low, i);
    if (length > 0) found.push([i, length]);
  }
  const total = found.reduce((sum, [, length]) => sum + length, 0);
  return found.map(([i, length]) => [i, length / total]);
}

// Return the maps to average features from, with their strides: levels, last layer and second branch.
const sources = ({maps, head, strides, branch}, {levels, head: withHead, branch: withBranch = false}) => {
  const found = levels.map((stride) => [maps[strides.indexOf(stride)], stride]);
  if (withHead) found.push([head, strides[strides.length - 1]]);
  return withBranch ? [...found, ...branch] : found;
};

// Return the means of a map over boxes: (N, C).
const boxMeans = (map, boxes, stride) => means(map, boxes.map((box) => {
  const [x1, y1, x2, y2] = box.map((value) => value / stride);
  return {across: shares(x1, x2, map.columns), down: shares(y1, y2, map.rows)};
}));

// Return the means of an image's maps over boxes, and the boxes' positions: (N, D).
function boxFeatures(image, boxes, chosen) {
  const parts = sources(image, chosen).map(([map, stride]) => boxMeans(map, boxes, stride));
  return sideBySide([...parts, place(boxes, image.inputWidth, image.inputHeight)]);
}

// Return the mean of a whole map, (C).
const wholeMean = (map) => means(map, [{down: shares(0, map.rows, map.rows), across: shares(0, map.columns, map.columns)}]).data;

// Return the same, repeated for several boxes, (N, C).
const wholeMeans = (map, count) => {
  const values = wholeMean(map), same = new Matrix(count, values.length);
  for (let i = 0; i < count; i++) same.row(i).set(values);
  return same;
};

// Return the inputs for decoding phrases: the features of boxes, with the maps of a second branch instead of the last
// layer, after the boxes' positions; the means of these maps over the image; and the embeddings.
export function contextFeatures(image, boxes, levels, embeddings) {
  const more = image.branch, whole = more.length ? more.map(([map]) => map) : [image.head];
  return sideBySide([
    boxFeatures(image, boxes, {levels, head: !more.length}), ...more.map(([map, stride]) => boxMeans(map, boxes, stride)),
    ...whole.map((map) => wholeMeans(map, boxes.length)), embeddings,
  ]);
}

// Return the inputs of the classifier: the features of boxes, the image means of the last layer and of the branch, and the
// embeddings.
export function classFeatures(image, boxes, {levels, branch}, embeddings) {
  const whole = sources(image, {levels: [], head: true, branch}).map(([map]) => wholeMeans(map, boxes.length));
  return sideBySide([boxFeatures(image, boxes, {levels, head: true, branch}), ...whole, ...(embeddings ? [embeddings] : [])]);
}

// Return the cells of a map that each cell of a grid touches, as in adaptive average pooling.
function windows(length, cells) {
  return Array.from({length: cells}, (_, i) => {
    const start = Math.floor((i * length) / cells), stop = Math.ceil(((i + 1) * length) / cells);
    return Array.from({length: stop - start}, (_, k) => [start + k, 1 / (stop - start)]);
  });
}

// Return the means of an image's maps over the cells of a grid, row by row, and the boxes of the cells.
export function gridFeatures(image, cells, chosen) {
  const {inputWidth: width, inputHeight: height} = image, boxes = [];
  for (let v = 0; v < cells; v++) {
    for (let u = 0; u < cells; u++) {
      boxes.push([(u / cells) * width, (v / cells) * height, ((u + 1) / cells) * width, ((v + 1) / cells) * height]);
    }
  }
  const parts = sources(image, chosen).map(([map]) => {
    const down = windows(map.rows, cells), across = windows(map.columns, cells);
    return means(map, boxes.map((_, i) => ({down: down[Math.floor(i / cells)], across: across[i % cells]})));
  });
  return {features: sideBySide([...parts, place(boxes, width, height)]), boxes};
}
