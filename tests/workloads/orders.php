<?php
// Busy in a method and a function, until it is killed or its life is over.
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

echo serve(), "\n";
