'use strict';
(function () {
  const root = document.documentElement;
  const all = (what, from) => Array.from((from || document).querySelectorAll(what));
  root.classList.add('js');
  all('button[disabled]').forEach((button) => { button.disabled = false; });
  all('.tool[hidden]').forEach((button) => { button.hidden = false; });

  // ---- day and night: what was chosen is remembered where the browser lets us
  const theme = document.getElementById('theme');
  const night = window.matchMedia('(prefers-color-scheme: dark)');
  const dark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : night.matches);
  const tell = () => {
    theme.textContent = dark() ? 'Light colours' : 'Dark colours';
    theme.setAttribute('aria-pressed', String(dark()));
  };
  theme.addEventListener('click', () => {
    root.dataset.theme = dark() ? 'light' : 'dark';
    try { window.localStorage.setItem('fedstrata-theme', root.dataset.theme); } catch (_) { /* blocked: it holds for this visit */ }
    tell();
  });
  night.addEventListener('change', tell);
  tell();

  // ---- tabs
  all('[role=tablist]').forEach((list) => {
    const tabs = all('[role=tab]', list);
    const open = (at, focus) => tabs.forEach((tab, i) => {
      tab.setAttribute('aria-selected', String(i === at));
      tab.tabIndex = i === at ? 0 : -1;
      document.getElementById(tab.getAttribute('aria-controls')).hidden = i !== at;
      if (i === at && focus) { tab.focus(); }
    });
    tabs.forEach((tab, i) => tab.addEventListener('click', () => { open(i, false); measure(); }));
    list.addEventListener('keydown', (event) => {
      const at = tabs.indexOf(document.activeElement);
      const to = { ArrowRight: (at + 1) % tabs.length, ArrowLeft: (at + tabs.length - 1) % tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
      if (at >= 0 && to !== undefined) { event.preventDefault(); open(to, true); measure(); }
    });
    open(0, false);
  });

  // ---- sorting: numbers by value, words by letters, what is missing last either way
  all('table.sort').forEach((table) => {
    const heads = all('thead th', table);
    const body = table.tBodies[0];
    heads.forEach((head, column) => head.querySelector('button').addEventListener('click', () => {
      const words = head.classList.contains('w');
      const now = head.getAttribute('aria-sort');
      const up = now === 'none' ? words : now === 'descending';
      const key = (row) => {
        const cell = row.cells[column];
        if (words) { return cell.textContent.trim().toLowerCase(); }
        return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
      };
      const rows = all('tr', body).map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) { return (a === null) - (b === null); }
        const order = words ? a.localeCompare(b, 'en', { numeric: true }) : a - b;
        return up ? order : -order;
      });
      rows.forEach(([, row]) => body.appendChild(row));
      heads.forEach((other) => other.setAttribute('aria-sort', other === head ? (up ? 'ascending' : 'descending') : 'none'));
    }));
  });

  // ---- one method among many: pointing at its name lights its lines up, a click keeps it so
  let kept = null;
  const light = (series) => {
    all('svg .lit').forEach((part) => part.classList.remove('lit'));
    root.classList.toggle('lighting', series !== null);
    if (series !== null) { all('svg .s' + series).forEach((part) => part.classList.add('lit')); }
  };
  all('.key button').forEach((button) => button.addEventListener('click', () => {
    kept = kept === button.dataset.series ? null : button.dataset.series;
    all('.key button').forEach((other) => other.setAttribute('aria-pressed', String(other.dataset.series === kept)));
    light(kept);
  }));
  all('.key button, tbody tr[data-series]').forEach((thing) => {
    thing.addEventListener('mouseenter', () => light(thing.dataset.series));
    thing.addEventListener('mouseleave', () => light(kept));
    if (thing.tagName === 'BUTTON') {
      thing.addEventListener('focus', () => light(thing.dataset.series));
      thing.addEventListener('blur', () => light(kept));
    }
  });

  // ---- copying
  all('button[data-copy]').forEach((button) => button.addEventListener('click', () => {
    const source = document.getElementById(button.dataset.copy);
    const done = (well) => {
      document.getElementById('told').textContent = well ? 'copied' : 'not copied: the text is selected, press Ctrl-C';
      button.textContent = well ? 'Copied' : 'Press Ctrl-C';
      window.setTimeout(() => { button.textContent = 'Copy'; }, 2000);
    };
    const select = () => window.getSelection().selectAllChildren(source);
    if (navigator.clipboard) {
      navigator.clipboard.writeText(source.textContent).then(() => done(true), () => { select(); done(false); });
    } else { select(); done(false); }
  }));

  // ---- tables and pictures that are wider than their box say so, and only they can be focused
  function measure() {
    all('.scroll, figure.wide .draw').forEach((box) => {
      const over = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle('over', over);
      if (over || box.scrollHeight > box.clientHeight + 1) { box.tabIndex = 0; } else { box.removeAttribute('tabindex'); }
    });
  }
  window.addEventListener('resize', measure);
  all('details').forEach((details) => details.addEventListener('toggle', measure));
  measure();

  // ---- where one is in the page
  const links = new Map(all('nav.toc a').map((link) => [link.hash.slice(1), link]));
  if ('IntersectionObserver' in window) {
    const seen = new Set();
    const watch = new IntersectionObserver((entries) => {
      entries.forEach((entry) => (entry.isIntersecting ? seen.add(entry.target.id) : seen.delete(entry.target.id)));
      const first = all('main > section').find((section) => seen.has(section.id));
      links.forEach((link, id) => {
        if (first && id === first.id) { link.setAttribute('aria-current', 'true'); } else { link.removeAttribute('aria-current'); }
      });
    }, { rootMargin: '-10% 0px -60% 0px' });
    all('main > section').forEach((section) => watch.observe(section));
  }

  // ---- printing shows what is meant to be printed, and closes it again
  let opened = [];
  window.addEventListener('beforeprint', () => {
    light(null);
    opened = all('details.open:not([open])');
    opened.forEach((details) => { details.open = true; });
  });
  window.addEventListener('afterprint', () => { opened.forEach((details) => { details.open = false; }); light(kept); });
})();
