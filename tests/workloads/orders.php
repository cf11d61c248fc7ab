<?php
// Busy in a method and a function, until it is killed or its life is over; with `worker`, in a child that was
// forked when its code was compiled.
namespace Shop;

const LIFE_S = 600;

class Ledger
{
    public function settle(int $turns): int
    {
        $x = 1;
        for ($i = 0; $i < $turns; $i++) {
            $x = ($x * 1664525 + 1013904223) & 0xffffffff;
        }
        return $x;
    }
}

function serve(): int
{
    $ledger = new Ledger();
    $end = microtime(true) + LIFE_S;
    $sum = 0;
    while (microtime(true) < $end) {
        $sum ^= $ledger->settle(3000);
    }
    return $sum;
}

if (($argv[1] ?? '') === 'worker') {
    $worker = pcntl_fork();
    if ($worker > 0) {
        // The end of this one is the end of the worker: nothing of a test is left behind.
        pcntl_async_signals(true);
        pcntl_signal(SIGTERM, fn () => posix_kill($worker, SIGKILL) && exit(0));
        pcntl_waitpid($worker, $status);
        exit(0);
    }
}
echo serve(), "\n";
