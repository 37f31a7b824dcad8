// The page's questions, answered by the server that the page came from.

const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
}

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Wait some seconds; reject when the request is aborted.
function pause(seconds, signal) {
  return new Promise((done, fail) => {
    setTimeout(done, seconds * 1000);
    signal?.addEventListener("abort", () => fail(signal.reason), {once: true});
  });
}

// Fetch a path; onToken() asks the user for the token, if the server needs one. Retry after the time a busy server names.
async function request(path, options, onToken, tries = 3) {
  const headers = new Headers(options.headers);
  const known = sessionStorage.getItem("token");
  if (known) headers.set("Authorization", `Bearer ${known}`);
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer. Is it still running?");
  }
  if (response.status === 401 && onToken) {
    sessionStorage.setItem("token", await onToken(known !== null));
    return request(path, options, onToken, tries);
  }
  const later = Number(response.headers.get("Retry-After"));
  if (later > 0 && tries > 1) {
    await pause(later, options.signal);
    return request(path, options, onToken, tries - 1);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Refusal(response.status, body.error ?? `the server answered ${response.status}`);
  }
  return response;
}

export class Server {
  constructor(onToken) {
    this.onToken = onToken;
  }

  async get(path) {
    return request(path, {}, this.onToken);
  }

  // Ask a question about a photo, {blob, tag}. The image is sent once; later questions refer to it by its tag.
  async ask(verb, photo, parameters = {}, {signal, keep = true} = {}) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters)) {
      for (const one of Array.isArray(value) ? value : [value]) query.append(name, one);
    }
    const path = `v1/${verb}?${query}`;
    if (photo.tag) {
      try {
        const again = await request(path, {method: "POST", headers: {"If-Match": photo.tag}, signal}, this.onToken);
        return await again.json();
      } catch (error) {
        if (error.status !== 412) throw error;
        photo.tag = null;
      }
    }
    // Without keep, the server does not cache the image's encoding.
    const headers = {"Content-Type": photo.blob.type || "application/octet-stream"};
    if (!keep) headers["Cache-Control"] = "no-store";
    const response = await request(path, {method: "POST", headers, body: photo.blob, signal}, this.onToken);
    photo.tag = response.headers.get("ETag");
    return response.json();
  }
}
