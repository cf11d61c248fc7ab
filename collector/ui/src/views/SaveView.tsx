// Saves the address of what is looked at, under a name.

import { useState } from 'preact/hooks';
import { Link } from '../app/Link';
import { TroubleBox } from '../app/parts';
import { TITLE_MAX } from '../incidents/words';
import { useChange } from '../incidents/useChange';
import { addressOf } from '../state/store';
import { saveView } from './client';

/** In the menu of links. */
export function SaveView() {
  const [name, setName] = useState('');
  const [saved, setSaved] = useState(false);
  const { busy, trouble, run } = useChange();
  const submit = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      await saveView(name, addressOf({}));
      setName('');
      setSaved(true);
    });
  };
  return (
    <>
      <form class="save-view" onSubmit={submit}>
        <input
          aria-label="Name of a saved view"
          placeholder="Save this view as …"
          maxLength={TITLE_MAX}
          value={name}
          onInput={(event) => {
            setName(event.currentTarget.value);
            setSaved(false);
          }}
        />
        <button type="submit" disabled={busy || name.trim() === ''}>
          Save
        </button>
      </form>
      {trouble && <TroubleBox trouble={trouble} />}
      <p role="status">{saved && 'Saved.'}</p>
      <Link to={{ view: 'views', saved: '' }}>
        <b>Saved views</b> <span class="soft">and snapshots, of everyone</span>
      </Link>
    </>
  );
}
