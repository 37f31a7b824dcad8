// The files of the model: fetched, unpacked, and their weights by name.

const ROUNDED_BITS = 4; // bits of a rounded weight in the second plane

// Fetch a file, decompress it if necessary, and report the received bytes.
export async function readFile(address, onBytes = () => {}) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address} is missing: export the page again`);
  const parts = [], reader = response.body.getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    parts.push(read.value);
    onBytes(read.value.length);
  }
  const blob = new Blob(parts), [first, second] = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  if (first !== 0x1f || second !== 0x8b) return blob.arrayBuffer();
  return new Response(blob.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

const HALF = new Float32Array(1 << 16);
for (let bits = 0; bits < 1 << 16; bits++) {
  const exponent = (bits >> 10) & 31, fraction = (bits & 1023) / 1024;
  const size = exponent ? (1 + fraction) * 2 ** (exponent - 15) : fraction * 2 ** -14;
  HALF[bits] = bits & 0x8000 ? -size : size;
}

// The weights of a part, in the layout of web/weights.py: the upper bytes of all half-precision numbers, then the lower
// ones; the upper bytes of all rounded numbers, then the lower four bits, two numbers per byte; then single-precision
// numbers, including a factor for each row of the others.
export class Weights {
  constructor(arrays, buffer) {
    this.arrays = new Map(arrays.map((array) => [array.name, array]));
    const length = ({shape}) => shape.reduce((a, b) => a * b, 1);
    const total = (kind) => arrays.filter((array) => array.kind === kind).reduce((sum, array) => sum + length(array), 0);
    const halves = total("half"), rounded = total("rounded"), nibbles = Math.ceil(rounded / 2);
    const bytes = new Uint8Array(buffer), floats = new DataView(buffer, 2 * halves + rounded + nibbles);
    let half = 0, number = 0, float = 0;
    for (const array of arrays) {
      const values = (array.values = new Float32Array(length(array)));
      const read = () => floats.getFloat32(4 * float++, true);
      if (array.kind === "single") {
        for (let i = 0; i < values.length; i++) values[i] = read();
        continue;
      }
      const columns = values.length / array.shape[0];
      for (let row = 0, i = 0; row < array.shape[0]; row++) {
        const factor = read();
        for (const end = i + columns; i < end; i++) {
          if (array.kind === "half") {
            values[i] = HALF[(bytes[half] << 8) | bytes[halves + half]] * factor;
            half++;
            continue;
          }
          const upper = (bytes[2 * halves + number] << 24) >> 24; // sign-extended
          const pair = bytes[2 * halves + rounded + (number >> 1)];
          values[i] = ((upper << ROUNDED_BITS) | (number & 1 ? pair & 15 : pair >> 4)) * factor;
          number++;
        }
      }
    }
  }

  has(name) {
    return this.arrays.has(name);
  }

  shape(name) {
    return this.arrays.get(name).shape;
  }

  get(name) {
    return this.arrays.get(name).values;
  }
}
