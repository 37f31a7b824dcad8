// The page's questions, answered without a server, by a worker that runs the model in this browser.

const WORKER = new URL("../engine/worker.js", import.meta.url);

export class Server {
  constructor() {
    this.waiting = new Map(); // by question number
    this.asked = 0;
    this.bytes = 0; // bytes of the model received so far
    this.onBytes = () => {};
    this.worker = new Worker(WORKER, {type: "module"});
    this.worker.addEventListener("message", ({data}) => this.receive(data));
    this.worker.addEventListener("error", () => {
      for (const {reject} of this.waiting.values()) reject(new Error("This browser cannot run the model"));
    });
  }

  receive({id, answer, error, bytes}) {
    if (bytes !== undefined) {
      this.bytes = bytes;
      return this.onBytes(bytes);
    }
    const question = this.waiting.get(id);
    this.waiting.delete(id);
    if (error === undefined) question?.resolve(answer);
    else question?.reject(new Error(error));
  }

  send(question, signal) {
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, {resolve, reject});
      signal?.addEventListener("abort", () => {
        if (this.waiting.delete(id)) this.worker.postMessage({drop: id});
        reject(signal.reason);
      });
      this.worker.postMessage({id, ...question});
    });
  }

  // The only path that the page gets: the description of the model.
  async get() {
    const {name, parts, bytes} = await this.send({verb: "models"});
    return {json: () => ({models: [{name, parts}], indexed: null, local: true, bytes})};
  }

  // Ask a question about a photo, {blob, tag}; it is encoded once, and cached by its tag.
  ask(verb, photo, parameters = {}, {signal, keep = true} = {}) {
    if (keep) photo.tag ??= ++this.asked;
    return this.send({verb, tag: keep ? photo.tag : null, blob: photo.blob, parameters}, signal);
  }
}
