
'use strict';
// Everything that is shown is put in as text: names come from clients and may be anything.
const POLL_MS = 2000, KEPT = 150;
const past = { read: [], write: [], reads: [], writes: [], meta: [] };
let seen = 0, failing = 0;
const by = id => document.getElementById(id);

function el(tag, cls, ...children) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  for (const child of children) {
    if (child !== null && child !== undefined) e.append(child);
  }
  return e;
}
function titled(e, title) { e.title = title; return e; }
function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at++; }
  return (at === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + ' ' + units[at];
}
function number(n) {
  if (n >= 1e6) return (n / 1e6).toFixed(1) + ' M';
  return n >= 1e4 ? (n / 1e3).toFixed(1) + ' k' : String(n);
}
// Few long requests are not none.
function rate(perSecond, bytes) {
  return perSecond === 0 && bytes > 0 ? '<1' : number(perSecond);
}
function micros(us) {
  if (!us) return '–';
  return us >= 1e6 ? (us / 1e6).toFixed(1) + ' s' : us >= 1e4 ? Math.round(us / 1e3) + ' ms'
    : (us / 1e3).toFixed(1) + ' ms';
}
function span(s) {
  if (s < 120) return Math.round(s) + ' s';
  if (s < 7200) return Math.round(s / 60) + ' min';
  return s < 172800 ? Math.round(s / 3600) + ' h' : Math.round(s / 86400) + ' d';
}
function bar(part, cls) {
  const fill = el('i', cls !== undefined ? cls : part > .95 ? 'bad' : part > .85 ? 'warn' : '');
  fill.style.width = Math.min(100, Math.max(0, part * 100)).toFixed(1) + '%';
  return el('div', 'bar', fill);
}
function table(id, heads, rows, none) {
  const head = el('tr', '', ...heads.map(([text, cls]) => el('th', cls, text)));
  const body = rows.length ? rows : [el('tr', '', Object.assign(el('td', 'empty', none),
    { colSpan: heads.length }))];
  by(id).replaceChildren(el('thead', '', head), el('tbody', '', ...body));
}
function chart(lines) {
  const ns = 'http://www.w3.org/2000/svg', svg = document.createElementNS(ns, 'svg');
  svg.setAttribute('viewBox', '0 0 ' + (KEPT - 1) + ' 40');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('aria-hidden', 'true');
  const most = Math.max(1, ...lines.flatMap(([values]) => values));
  for (const [values, cls] of lines) {
    const line = document.createElementNS(ns, 'polyline');
    const at = (v, i) => (KEPT - values.length + i) + ',' + (39 - v / most * 37).toFixed(1);
    line.setAttribute('points', values.map(at).join(' '));
    line.setAttribute('class', cls);
    svg.append(line);
  }
  return svg;
}
function keep(list, value) { list.push(value); if (list.length > KEPT) list.shift(); }
function tile(label, value, under, ...more) {
  return el('div', 'tile', el('div', 'label', ...[].concat(label)),
    el('div', 'value', ...[].concat(value)), el('div', 'under', under), ...more);
}
function state(text, cls) { return el('span', 'state ' + cls, text); }
function small(text) { return el('small', '', text); }

function problems(d) {
  const rows = d.problems.map(p => el('div', 'problem ' + p.severity, el('b', '', p.text),
    el('span', 'what', p.consequence), p.command ? el('code', '', p.command) : null));
  if (!rows.length) rows.push(el('div', 'problem allgood', el('b', '', 'Nothing is wrong'),
    el('span', 'what', 'everything serves, and all that is stored has its redundancy')));
  by('problems').replaceChildren(...rows);
}
function tiles(d) {
  const c = d.capacity, l = d.load, r = d.repair, s = d.scrub;
  const used = c.total_bytes ? c.used_bytes / c.total_bytes : 0;
  const room = bytes(Math.max(0, c.total_bytes - c.used_bytes) * c.file_part);
  const left = r.missing_chunks + r.moving_chunks;
  const repair = !left ? 'all is whole' : r.eta_s === null ? 'does not go on now'
    : number(r.chunks_per_s) + '/s, ' + span(r.eta_s) + ' left';
  const scrub = !s.of_bytes ? 'nothing is stored' : s.oldest_s ? 'every target was through '
    + span(Math.max(0, d.at_ms / 1000 - s.oldest_s)) + ' ago' : 'not through everywhere yet';
  by('tiles').replaceChildren(
    tile('Capacity', [Math.round(used * 100) + ' % ', small(bytes(c.used_bytes) + ' of '
      + bytes(c.total_bytes))], 'about ' + room + ' of files fit still', bar(used)),
    tile([el('span', 'key read'), 'Reads'], [bytes(l.read_bytes_per_s) + '/s '],
      rate(l.reads_per_s, l.read_bytes_per_s) + ' requests/s, ' + micros(l.read_us) + ' each',
      chart([[past.read, 'line-read']])),
    tile([el('span', 'key write'), 'Writes'], [bytes(l.written_bytes_per_s) + '/s '],
      rate(l.writes_per_s, l.written_bytes_per_s) + ' requests/s, ' + micros(l.write_us) + ' each',
      chart([[past.write, 'line-write']])),
    tile('Metadata', [number(l.metadata_per_s), small(' operations/s')],
      number(l.waiting) + ' requests for chunks wait', chart([[past.meta, 'line-read']])),
    tile('Redundancy', [number(r.missing_chunks), small(' chunks missing'
      + (r.moving_chunks ? ', ' + number(r.moving_chunks) + ' move' : ''))], repair,
      bar(left ? r.made_chunks / (r.made_chunks + left) : 1, '')),
    tile('Scrub', [s.of_bytes ? Math.round(100 * s.done_bytes / s.of_bytes) + ' %' : '–',
      small(' of this round')], scrub, bar(s.of_bytes ? s.done_bytes / s.of_bytes : 0, '')));
}
function drive(t) {
  const odd = t.full ? ' full' : t.draining ? ' drains' : t.errors ? ' ' + t.errors + ' errors'
    : t.stalled_ms > 2000 ? ' hangs' : '';
  const cls = t.state !== 'up' ? t.state : odd ? 'warn' : '';
  const used = t.total_bytes ? Math.round(100 * t.used_bytes / t.total_bytes) + ' %' : '';
  return titled(el('span', 'drive ' + cls, '#' + t.id + ' ' + (t.state !== 'up' ? t.state : used)
    + odd), t.path + ': ' + t.state + ', ' + bytes(t.used_bytes) + ' of ' + bytes(t.total_bytes)
    + ', ' + t.chunks + ' chunks');
}
function daemons(d) {
  const domains = d.daemons.some(x => x.domain && x.domain !== x.name);
  const domain = domains ? 'optional' : 'gone';
  const rows = d.daemons.map(x => {
    const cls = { up: 'good', down: 'bad', partly: 'warn' }[x.state] || '';
    const l = x.load;
    return el('tr', '', titled(el('td', 'name', x.name), x.address),
      el('td', domain, x.domain), el('td', '', state(x.state, cls)),
      el('td', '', el('div', 'drives', ...x.targets.map(drive))),
      el('td', 'optional', bar(x.total_bytes ? x.used_bytes / x.total_bytes : 0)),
      el('td', 'n', bytes(l.read_bytes_per_s)), el('td', 'n', bytes(l.written_bytes_per_s)),
      el('td', 'n optional', number(l.reads_per_s + l.writes_per_s)),
      el('td', 'n', micros(l.read_us)), el('td', 'n', micros(l.write_us)),
      el('td', 'n optional', number(l.waiting)));
  });
  table('daemons', [['Daemon'], ['Domain', domain], ['State'], ['Targets'],
    ['Used', 'optional'], ['Read/s', 'n'], ['Written/s', 'n'], ['Requests/s', 'n optional'],
    ['A read', 'n'], ['A write', 'n'], ['Waiting', 'n optional']], rows, 'none is known');
  by('daemons-note').textContent = d.capacity.targets_up + ' of ' + d.capacity.targets
    + ' targets up' + (d.daemons_left_out ? '; ' + d.daemons_left_out + ' daemons left out' : '');
}
function busiest(d) {
  by('tenants-card').hidden = !d.tenants;
  by('directories-card').hidden = !d.directories;
  by('events-card').hidden = !d.events;
  table('tenants', [['Tenant'], ['Read/s', 'n'], ['Written/s', 'n'], ['Requests/s', 'n'],
    ['Metadata/s', 'n'], ['Waited', 'n']], (d.tenants || []).slice(0, 12).map(t => el('tr', '',
    titled(el('td', 'name', t.name), t.name), el('td', 'n', bytes(t.read_bytes_per_s)),
    el('td', 'n', bytes(t.written_bytes_per_s)), el('td', 'n', number(t.requests_per_s)),
    el('td', 'n', number(t.metadata_per_s)), el('td', 'n', micros(t.waited_us)))),
  'nobody asks for anything now');
  table('directories', [['Directory'], ['Requests/s', 'n']], (d.directories || []).map(x =>
    el('tr', '', el('td', 'path', x.path), el('td', 'n', number(x.requests_per_s)))),
  'nobody looks up or changes names now');
  table('sessions', [['Client'], ['Proved', 'optional'], ['Open files', 'n'],
    ['Last heard', 'n']], d.sessions.slice(0, 12).map(s => el('tr', '',
    titled(el('td', 'name', s.client), s.client), el('td', 'optional', s.owner || '–'),
    el('td', 'n', number(s.open_files)), el('td', 'n', (s.idle_ms / 1000).toFixed(1) + ' s'))),
  'nobody is connected');
  const more = d.sessions_total - Math.min(12, d.sessions.length);
  by('sessions-note').textContent = d.sessions_total + (more > 0 ? ', the first 12 shown' : '');
  const kinds = { leader: 'good', follower: 'good', away: 'bad' };
  table('servers', [['Server'], ['Address'], ['State'], ['Behind', 'n']], d.servers.map(s =>
    el('tr', '', el('td', 'name', String(s.id)), el('td', '', s.address),
      el('td', '', state(s.state, kinds[s.state] || '')),
      el('td', 'n', s.state === 'leader' ? '' : number(s.lag) + ' entries'))), 'none is known');
  by('events').replaceChildren(...(d.events || []).map(e => el('li', '',
    el('span', 'quiet', new Date(e.at_ms).toISOString().replace('T', ' ').slice(0, 19)),
    el('span', e.warning ? 'warned' : '', e.kind), el('span', '', e.text))));
}
function notice(text, bad, link) {
  const at = by('notice');
  at.hidden = !text;
  at.className = 'notice' + (bad ? ' bad' : '');
  at.replaceChildren(text || '');
  if (link) at.append(Object.assign(el('a', '', link), { href: '//' + link + '/console' }));
}
function show(d) {
  const worst = d.problems.some(p => p.severity === 'critical');
  const pill = by('health');
  // That everything is there and whole does not mean that nothing is wrong.
  const wrong = d.health === 'ok' ? d.problems.filter(p => p.severity !== 'note').length : 0;
  const health = wrong ? `ok, ${wrong} problem${wrong > 1 ? 's' : ''}` : d.health;
  pill.textContent = health;
  pill.className = 'pill ' + (worst ? 'critical-pill' : wrong ? 'degraded' : d.health);
  document.title = (worst ? '‼ ' : health === 'ok' ? '' : '! ') + 'Weft: ' + health;
  if (!d.leads) {
    by('problems').replaceChildren();
    if (d.leader) {
      notice('Another server leads now: going on at ', false, d.leader);
      setTimeout(() => { location.href = '//' + d.leader + '/console'; }, 3000);
    } else {
      notice('Metadata server ' + d.me + ' knows no leader: nothing is served until a majority of '
        + 'the metadata servers reach each other. In a terminal: weft status', true);
    }
    return;
  }
  notice('');
  by('about').textContent = 'cluster ' + d.cluster.slice(0, 8) + ', map ' + d.epoch
    + ', led by server ' + d.me;
  by('about').title = d.cluster;
  by('version').textContent = 'Weft ' + d.version;
  const l = d.load;
  keep(past.read, l.read_bytes_per_s); keep(past.write, l.written_bytes_per_s);
  keep(past.meta, l.metadata_per_s);
  problems(d); tiles(d); daemons(d); busiest(d);
}
function age() {
  if (!seen) return;
  const s = Math.round((Date.now() - seen) / 1000);
  by('age').textContent = s < 3 ? 'live' : 'as of ' + span(s) + ' ago';
  if (failing > 1) notice('No answer for ' + span(s) + ': what is shown is as of then', true);
}
async function poll() {
  if (!document.hidden || !seen) {
    try {
      const limit = new AbortController();
      const timer = setTimeout(() => limit.abort(), 8000);
      const answer = await fetch('/console/data.json', { cache: 'no-store', signal: limit.signal });
      if (!answer.ok) throw new Error(String(answer.status));
      const data = await answer.json();
      clearTimeout(timer);
      seen = Date.now(); failing = 0;
      show(data);
    } catch (error) {
      failing++;
      if (!seen) notice('No answer from the metadata server yet (' + error.message + ')', true);
    }
    age();
  }
  setTimeout(poll, Math.min(POLL_MS * (1 + failing), 10000));
}
document.addEventListener('visibilitychange', age);
setInterval(age, 1000);
poll();
