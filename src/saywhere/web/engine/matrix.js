// Row-major matrices in single precision, and the layers that the model is built from.

export class Matrix {
  constructor(rows, columns, data = new Float32Array(rows * columns)) {
    [this.rows, this.columns, this.data] = [rows, columns, data];
  }

  row(number) {
    return this.data.subarray(number * this.columns, (number + 1) * this.columns);
  }

  // Return the rows with these indices, in any order, with repetitions.
  pick(numbers) {
    const picked = new Matrix(numbers.length, this.columns);
    numbers.forEach((number, i) => picked.row(i).set(this.row(number)));
    return picked;
  }

  map(change) {
    return new Matrix(this.rows, this.columns, this.data.map(change));
  }
}

// Concatenate two matrices with the same number of columns along rows.
export function stacked(one, other) {
  const data = new Float32Array(one.data.length + other.data.length);
  data.set(one.data);
  data.set(other.data, one.data.length);
  return new Matrix(one.rows + other.rows, one.columns, data);
}

// Concatenate matrices with the same number of rows along columns.
export function sideBySide(parts) {
  const joined = new Matrix(parts[0].rows, parts.reduce((sum, part) => sum + part.columns, 0));
  for (let i = 0; i < joined.rows; i++) {
    let start = 0;
    for (const part of parts) {
      joined.row(i).set(part.row(i), start);
      start += part.columns;
    }
  }
  return joined;
}

// Return x (N, in) times the transpose of weight (out, in), plus an optional bias (out): (N, out).
export function linear(x, {weight, bias}) {
  const y = new Matrix(x.rows, weight.rows);
  const a = x.data, w = weight.data, out = y.data, depth = x.columns, width = weight.rows;
  const wide = width - (width % 4), high = x.rows - (x.rows % 4);
  for (let i = 0; i < high; i += 4) {
    for (let j = 0; j < wide; j += 4) tile(a, w, out, i * depth, j * depth, depth, i * width + j, width);
  }
  const dot = (i, j) => {
    let sum = 0;
    for (let k = 0, p = i * depth, q = j * depth; k < depth; k++) sum += a[p + k] * w[q + k];
    out[i * width + j] = sum;
  };
  for (let i = 0; i < high; i++) for (let j = wide; j < width; j++) dot(i, j);
  for (let i = high; i < x.rows; i++) for (let j = 0; j < width; j++) dot(i, j);
  if (bias) for (let i = 0, n = 0; i < y.rows; i++) for (let j = 0; j < width; j++) out[n++] += bias[j];
  return y;
}

// Compute sixteen dot products of four rows with four rows: each number is read once for four products.
function tile(a, w, out, p, q, depth, place, width) {
  let s00 = 0, s01 = 0, s02 = 0, s03 = 0, s10 = 0, s11 = 0, s12 = 0, s13 = 0;
  let s20 = 0, s21 = 0, s22 = 0, s23 = 0, s30 = 0, s31 = 0, s32 = 0, s33 = 0;
  for (let k = 0; k < depth; k++) {
    const a0 = a[p + k], a1 = a[p + depth + k], a2 = a[p + 2 * depth + k], a3 = a[p + 3 * depth + k];
    const w0 = w[q + k], w1 = w[q + depth + k], w2 = w[q + 2 * depth + k], w3 = w[q + 3 * depth + k];
    s00 += a0 * w0; s01 += a0 * w1; s02 += a0 * w2; s03 += a0 * w3;
    s10 += a1 * w0; s11 += a1 * w1; s12 += a1 * w2; s13 += a1 * w3;
    s20 += a2 * w0; s21 += a2 * w1; s22 += a2 * w2; s23 += a2 * w3;
    s30 += a3 * w0; s31 += a3 * w1; s32 += a3 * w2; s33 += a3 * w3;
  }
  out[place] = s00; out[place + 1] = s01; out[place + 2] = s02; out[place + 3] = s03;
  place += width;
  out[place] = s10; out[place + 1] = s11; out[place + 2] = s12; out[place + 3] = s13;
  place += width;
  out[place] = s20; out[place + 1] = s21; out[place + 2] = s22; out[place + 3] = s23;
  place += width;
  out[place] = s30; out[place + 1] = s31; out[place + 2] = s32; out[place + 3] = s33;
}

// Return a (N, K) times b (K, M).
export function product(a, b) {
  const y = new Matrix(a.rows, b.columns);
  for (let i = 0; i < a.rows; i++) {
    const row = y.row(i), sums = new Float64Array(b.columns);
    a.row(i).forEach((value, k) => {
      if (value) for (let j = 0, q = k * b.columns; j < sums.length; j++) sums[j] += value * b.data[q + j];
    });
    row.set(sums);
  }
  return y;
}

export const relu = (x) => x.map((value) => (value > 0 ? value : 0));
export const sigmoid = (value) => 0.5 * (Math.tanh(0.5 * value) + 1);

export function largest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

function eachRow(x, change) {
  const y = new Matrix(x.rows, x.columns);
  for (let i = 0; i < x.rows; i++) change(x.row(i), y.row(i));
  return y;
}

export const logSoftmax = (x) => eachRow(x, (row, out) => {
  const top = row[largest(row)];
  let sum = 0;
  for (const value of row) sum += Math.exp(value - top);
  const log = Math.log(sum);
  for (let j = 0; j < row.length; j++) out[j] = row[j] - top - log;
});

export const softmax = (x) => eachRow(x, (row, out) => {
  const top = row[largest(row)];
  let sum = 0;
  for (let j = 0; j < row.length; j++) sum += out[j] = Math.exp(row[j] - top);
  for (let j = 0; j < row.length; j++) out[j] /= sum;
});

// Normalize each row to mean 0 and variance 1.
export const layerNorm = (x) => eachRow(x, (row, out) => {
  let mean = 0, variance = 0;
  for (const value of row) mean += value / row.length;
  for (const value of row) variance += (value - mean) ** 2 / row.length;
  const scale = 1 / Math.sqrt(variance + 1e-5);
  for (let j = 0; j < row.length; j++) out[j] = (row[j] - mean) * scale;
});

// Return the layer with this name: its weight as a matrix, and its bias, if any.
export function layer(weights, name) {
  const [rows, columns] = weights.shape(`${name}.weight`);
  const bias = weights.has(`${name}.bias`) ? weights.get(`${name}.bias`) : null;
  return {weight: new Matrix(rows, columns, weights.get(`${name}.weight`)), bias};
}

// Return the input and the state layer of torch's LSTM or GRU.
export function recurrent(weights, name) {
  const of = (kind) => {
    const [rows, columns] = weights.shape(`${name}.weight_${kind}_l0`);
    const weight = new Matrix(rows, columns, weights.get(`${name}.weight_${kind}_l0`));
    return {weight, bias: weights.get(`${name}.bias_${kind}_l0`)};
  };
  return {input: of("ih"), state: of("hh")};
}

// Compute one step of an LSTM (torch's order of gates: input, forget, cell, output); h and c (N, H).
export function lstmStep(inputs, {state}, h, c) {
  const recurrence = linear(h, state), size = h.columns;
  const nextH = new Matrix(h.rows, size), nextC = new Matrix(h.rows, size);
  for (let i = 0; i < h.rows; i++) {
    const x = inputs.row(i), r = recurrence.row(i), was = c.row(i), cell = nextC.row(i), out = nextH.row(i);
    for (let j = 0; j < size; j++) {
      const gate = (k) => x[k * size + j] + r[k * size + j];
      cell[j] = sigmoid(gate(1)) * was[j] + sigmoid(gate(0)) * Math.tanh(gate(2));
      out[j] = sigmoid(gate(3)) * Math.tanh(cell[j]);
    }
  }
  return [nextH, nextC];
}

// Compute one step of a GRU (torch's order of gates: reset, update, new); h (N, H).
export function gruStep(inputs, {state}, h) {
  const recurrence = linear(h, state), size = h.columns, next = new Matrix(h.rows, size);
  for (let i = 0; i < h.rows; i++) {
    const x = inputs.row(i), r = recurrence.row(i), was = h.row(i), out = next.row(i);
    for (let j = 0; j < size; j++) {
      const reset = sigmoid(x[j] + r[j]), update = sigmoid(x[size + j] + r[size + j]);
      const fresh = Math.tanh(x[2 * size + j] + reset * r[2 * size + j]);
      out[j] = fresh + update * (was[j] - fresh);
    }
  }
  return next;
}
