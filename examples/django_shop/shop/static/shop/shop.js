// Once a second, what changes of a page is asked for again: until it says that nothing more will.
const live = document.querySelector("[data-live]");

async function look() {
  if (!document.hidden) {
    try {
      const answer = await fetch(`${location.pathname}?live`);
      if (answer.ok) live.innerHTML = await answer.text();
    } catch {
      // The server is away: the next look may find it.
    }
  }
  if (!live.querySelector("[data-settled]")) setTimeout(look, 1000);
}

if (live && !live.querySelector("[data-settled]")) setTimeout(look, 1000);
