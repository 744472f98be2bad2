/** The maximum flow of a pair whose edges are not stored: Dinic's algorithm on the capacities that the page has. */

const LEAST = 1e-9; // below this a pipe is full

/** All capacities of the current graph, [steps, n, n], or null where the page has none. */
function capacitiesOf() {
  if (F.dense === undefined) F.dense = unpackCapacities();
  return F.dense;
}

function unpackCapacities() {
  const count = D.levels.length * n * n;
  const out = new Float32Array(count);
  if (F.whole) {
    F.edgeIndex.forEach((at, id) => { out[at] = F.edgeCapacity[id] / F.unit; });
    return out;
  }
  if (!F.capacities) return null;
  const values = new (F.unit === 1 ? Float32Array : Uint16Array)(bytes(F.capacities.values));
  const gaps = F.capacities.gaps && new Uint16Array(bytes(F.capacities.gaps));
  let at = -1;
  values.forEach((value, e) => { out[at += gaps ? gaps[e] : 1] = value / F.unit; });
  return out;
}

/** {value, edges, cuts} of the flow from node row at height top to input sink; a node's number is height · n + place. */
function maximumFlow(cap, top, row, sink) {
  const flow = new Float64Array(top * n * n);
  const net = { cap, flow, top, level: new Int32Array((top + 1) * n), arc: new Int32Array((top + 1) * n) };
  const source = top * n + row;
  let value = 0;
  while (levelled(net, source, sink)) {
    net.arc.fill(0);
    for (let more = pushed(net, source, sink); more > 0; more = pushed(net, source, sink)) value += more;
  }
  return { value, ...described(net, source, sink) };
}

/** What is left of arc a of a node: arcs below n lead down through its pipes, the others back up through used ones. */
function left({ cap, flow, top }, node, a) {
  const h = Math.floor(node / n);
  const i = node - h * n;
  if (a < n) return h ? cap[((h - 1) * n + i) * n + a] - flow[((h - 1) * n + i) * n + a] : 0;
  return h < top ? flow[(h * n + a - n) * n + i] : 0;
}

const next = (node, a) => (a < n ? Math.floor(node / n) * n - n + a : Math.floor(node / n) * n + n + a - n);

/** The distance of every node from the source through pipes that are not full; false if the sink has none. */
function levelled(net, source, sink) {
  net.level.fill(-1);
  net.level[source] = 0;
  const queue = [source];
  for (let q = 0; q < queue.length && net.level[sink] < 0; q++) {
    const node = queue[q];
    for (let a = 0; a < 2 * n; a++) {
      if (left(net, node, a) <= LEAST) continue;
      const to = next(node, a);
      if (net.level[to] >= 0) continue;
      net.level[to] = net.level[node] + 1;
      queue.push(to);
    }
  }
  return net.level[sink] >= 0;
}

/** Send as much as fits along one shortest path; 0 if there is none left. */
function pushed(net, source, sink) {
  const path = [source];
  while (path.length) {
    const node = path.at(-1);
    if (node === sink) return sent(net, path);
    while (net.arc[node] < 2 * n && !leads(net, node)) net.arc[node]++;
    if (net.arc[node] < 2 * n) path.push(next(node, net.arc[node]));
    else {
      path.pop();
      if (path.length) net.arc[path.at(-1)]++;
    }
  }
  return 0;
}

function leads(net, node) {
  const a = net.arc[node];
  return left(net, node, a) > LEAST && net.level[next(node, a)] === net.level[node] + 1;
}

function sent(net, path) {
  const arcs = path.slice(0, -1).map((node) => [node, net.arc[node]]);
  const most = Math.min(...arcs.map(([node, a]) => left(net, node, a)));
  for (const [node, a] of arcs) {
    const h = Math.floor(node / n);
    const i = node - h * n;
    if (a < n) net.flow[((h - 1) * n + i) * n + a] += most;
    else net.flow[(h * n + a - n) * n + i] -= most;
  }
  return most;
}

/** The edges that carry flow, strongest first, and the two minimum cuts: nearest to the source, and to the sink. */
function described(net, source, sink) {
  const { cap, flow, top } = net;
  levelled(net, source, sink); // the sink is out of reach, so that all that can be reached is
  const reached = net.level.map((level) => (level >= 0 ? 1 : 0));
  const reaching = reachingNodes(net, sink);
  const edges = [];
  const [near, far] = [[], []];
  for (let at = 0; at < top * n * n; at++) {
    if (cap[at] <= 0) continue;
    const h = Math.floor(at / (n * n));
    const i = Math.floor(at / n) % n;
    const e = { id: -1 - at, h, i, k: at % n, capacity: cap[at], flow: flow[at], kind: kindOf(h, i, at % n) };
    if (flow[at] > LEAST) edges.push(e);
    const [above, below] = [(h + 1) * n + i, h * n + (at % n)];
    if (reached[above] && !reached[below]) near.push(e);
    if (!reaching[above] && reaching[below]) far.push(e);
  }
  return { edges: edges.sort((a, b) => b.flow - a.flow), cuts: [near, far] };
}

/** Which nodes the sink can still be reached from. */
function reachingNodes(net, sink) {
  const { cap, flow, top } = net;
  const out = new Uint8Array((top + 1) * n);
  out[sink] = 1;
  const queue = [sink];
  for (let q = 0; q < queue.length; q++) {
    const h = Math.floor(queue[q] / n);
    const k = queue[q] - h * n;
    for (let i = 0; i < n; i++) {
      const down = (h * n + i) * n + k; // from above
      const up = ((h - 1) * n + k) * n + i; // from below, back through a used pipe
      const found = [h < top && cap[down] - flow[down] > LEAST ? (h + 1) * n + i : -1, h && flow[up] > LEAST ? (h - 1) * n + i : -1];
      for (const node of found) {
        if (node < 0 || out[node]) continue;
        out[node] = 1;
        queue.push(node);
      }
    }
  }
  return out;
}

/** The pair of the chosen output and input: as stored, else computed, and kept until the page is closed. */
function pairOf(t, sink) {
  const stored = F.pairsOf[t].get(sink);
  if (stored) return stored;
  const cap = capacitiesOf();
  if (!cap) return undefined;
  const [layer, row] = F.outputs[t];
  const found = maximumFlow(cap, D.tops[layer], D.firstRow + row, sink);
  const exact = scoresOf(t, F.flow, PER_TOKEN)[sink];
  const sum = found.edges.reduce((total, e) => total + e.flow, 0);
  const same = found.cuts[0].length === found.cuts[1].length && found.cuts[0].every((e, c) => e.id === found.cuts[1][c].id);
  const pair = { ...found, carried: found.value, value: Number.isNaN(exact) ? found.value : exact, count: found.edges.length, share: 1, sum, one: same, computed: true };
  pair.bound = boundOf(cap, D.tops[layer], D.firstRow + row, sink, found.value);
  F.pairsOf[t].set(sink, pair);
  return pair;
}

function boundOf(cap, top, row, sink, value) {
  let [leaves, enters] = [0, 0];
  for (let i = 0; i < n; i++) {
    leaves += cap[((top - 1) * n + row) * n + i];
    enters += cap[i * n + sink];
  }
  const close = (limit) => Math.abs(value - limit) <= 1e-6 * Math.max(limit, 1e-6);
  return close(enters) ? "input" : close(leaves) ? "output" : "between";
}
