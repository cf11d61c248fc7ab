// Which build this code is of. The page and its worker are two files, each read when it is needed:
// when the collector is upgraded in between they differ.

declare const __BUILD__: string | undefined;

/** A hash of the sources, where they were built (vite.config.ts). */
export const BUILD: string = typeof __BUILD__ === 'string' ? __BUILD__ : 'not built';
