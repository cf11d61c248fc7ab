// Who looks at the page, where it asked who they are, and the way out.

import { useEffect, useState } from 'preact/hooks';
import { pageBase } from '../query/base';
import { printable } from '../text/printable';
import { Icon, Name, Popover } from './parts';

interface Who {
  name: string;
  role: string;
}

/** Who has a session that can be ended; nothing where there is none, or it cannot be told. */
async function whoIsIn(signal: AbortSignal): Promise<Who | undefined> {
  const answer = await fetch(`${pageBase()}/api/session`, { signal, credentials: 'same-origin' });
  if (!answer.ok) return undefined;
  const who: unknown = await answer.json();
  if (typeof who !== 'object' || who === null) return undefined;
  const { name, role, can_log_out } = who as Record<string, unknown>;
  return can_log_out === true && typeof name === 'string' && typeof role === 'string' ? { name, role } : undefined;
}

export function Session() {
  const [who, setWho] = useState<Who>();
  const [trouble, setTrouble] = useState('');
  useEffect(() => {
    const ask = new AbortController();
    // If it is unknown, the queries of the page say what is wrong.
    whoIsIn(ask.signal).then(setWho, () => undefined);
    return () => ask.abort();
  }, []);
  if (who === undefined) return null;
  const logOut = async () => {
    setTrouble('');
    try {
      const answer = await fetch(`${pageBase()}/api/logout`, { method: 'POST', credentials: 'same-origin' });
      if (!answer.ok) throw new Error(`${answer.status}`);
      location.replace(`${pageBase()}/login`);
    } catch {
      setTrouble('The collector does not answer, so you are still logged in.');
    }
  };
  return (
    <Popover
      title={`Logged in as ${printable(who.name)}`}
      align="right"
      label={
        <>
          <Icon of="person" />{' '}
          <span class="wide-only">
            <Name text={who.name} max={24} />
          </span>
        </>
      }
    >
      {() => (
        <div class="menu">
          <p class="soft">
            <Name text={who.name} />, {printable(who.role)}
          </p>
          <button type="button" onClick={logOut}>
            Log out
          </button>
          {trouble !== '' && <p role="alert">{trouble}</p>}
        </div>
      )}
    </Popover>
  );
}
