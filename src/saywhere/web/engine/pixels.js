// From an image file to the network's input, with the same numbers as Pillow in Python.

const BITS = 22; // precision of the weights of pixels

// Decode a file as a viewer shows it: {width, height, data} in RGB, with transparency on white.
export async function decodeImage(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, {colorSpaceConversion: "none"});
  } catch {
    throw new Error(`${blob.name ?? "image"}: not an image that this browser can read`);
  }
  const {width, height} = bitmap;
  const pen = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  const rgba = pen.getImageData(0, 0, width, height).data;
  const data = new Uint8Array(3 * width * height);
  for (let i = 0, p = 0; i < data.length; p += 4) {
    data[i++] = rgba[p];
    data[i++] = rgba[p + 1];
    data[i++] = rgba[p + 2];
  }
  return {width, height, data};
}

// Reduce an image by an integer factor: means of squares of pixels, partial squares at the border.
export function reduce({width, height, data}, factor) {
  const across = Math.ceil(width / factor), down = Math.ceil(height / factor);
  const small = new Uint8Array(3 * across * down);
  for (let y = 0; y < down; y++) {
    const bottom = Math.min(height, (y + 1) * factor);
    for (let x = 0; x < across; x++) {
      const right = Math.min(width, (x + 1) * factor);
      const count = (bottom - y * factor) * (right - x * factor);
      const share = Math.floor(2 ** 24 / count), half = Math.floor(count / 2);
      for (let channel = 0; channel < 3; channel++) {
        let sum = half;
        for (let v = y * factor; v < bottom; v++) {
          for (let u = x * factor; u < right; u++) sum += data[3 * (v * width + u) + channel];
        }
        small[3 * (y * across + x) + channel] = Math.floor((sum * share) / 2 ** 24);
      }
    }
  }
  return {width: across, height: down, data: small};
}

// Return, for each new pixel of a side, the first old pixel that contributes, and the weights from there, in fixed point.
function triangles(before, after) {
  const scale = before / after, spread = Math.max(scale, 1);
  return Array.from({length: after}, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - spread + 0.5));
    const last = Math.min(before, Math.trunc(centre + spread + 0.5));
    const weights = Array.from({length: last - first}, (_, k) => {
      return Math.max(0, 1 - Math.abs((first + k - centre + 0.5) / spread));
    });
    const sum = weights.reduce((a, b) => a + b, 0);
    return {first, weights: weights.map((weight) => Math.trunc(0.5 + (sum ? weight / sum : weight) * 2 ** BITS))};
  });
}

// Resize by bilinear interpolation with antialiasing (triangle filters as wide as the step), first across, then down.
export function resize({width, height, data}, newWidth, newHeight) {
  const wide = new Uint8Array(3 * newWidth * height);
  const byte = (sum) => Math.min(255, Math.max(0, sum >> BITS));
  triangles(width, newWidth).forEach(({first, weights}, x) => {
    for (let y = 0; y < height; y++) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = 1 << (BITS - 1);
        for (let k = 0; k < weights.length; k++) sum += weights[k] * data[3 * (y * width + first + k) + channel];
        wide[3 * (y * newWidth + x) + channel] = byte(sum);
      }
    }
  });
  const line = 3 * newWidth, out = new Uint8Array(line * newHeight);
  triangles(height, newHeight).forEach(({first, weights}, y) => {
    for (let i = 0; i < line; i++) {
      let sum = 1 << (BITS - 1);
      for (let k = 0; k < weights.length; k++) sum += weights[k] * wide[(first + k) * line + i];
      out[y * line + i] = byte(sum);
    }
  });
  return {width: newWidth, height: newHeight, data: out};
}

function roundEven(value) {
  const down = Math.floor(value), rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2) ? down + 1 : down;
}

// Return the network's input for an image: {width, height, pixels (3, h, w)}.
export function prepare(image, {long_side, multiple, mean, std}) {
  const factor = long_side / Math.max(image.width, image.height);
  const side = (length) => Math.max(multiple, roundEven((length * factor) / multiple) * multiple);
  const [width, height] = [side(image.width), side(image.height)];
  const shrink = Math.min(Math.floor(Math.max(image.width, image.height) / long_side), image.width, image.height);
  const {data} = resize(shrink > 1 ? reduce(image, shrink) : image, width, height);
  const pixels = new Float32Array(data.length), area = width * height;
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) {
      pixels[c * area + i] = Math.fround(Math.fround(Math.fround(data[3 * i + c] / 255) - mean[c]) / std[c]);
    }
  }
  return {width, height, pixels, spreads: spreadsOf(data, width, height)};
}

// Return how far apart the channels are, for every second pixel across and down.
function spreadsOf(data, width, height) {
  const found = [];
  for (let y = 0; y < height; y += 2) {
    for (let x = 0; x < width; x += 2) {
      const channels = data.subarray(3 * (y * width + x), 3 * (y * width + x) + 3);
      found.push(Math.max(...channels) - Math.min(...channels));
    }
  }
  return found;
}
