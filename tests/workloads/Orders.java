// Busy in two methods of one name, below `main`, until it is killed or its life is over.
package com.example;

public final class Orders {
    private static final long LIFE_MS = 600_000;

    static long settle(int turns) {
        long x = 1;
        for (int i = 0; i < turns; i++) x = x * 1664525 + 1013904223;
        return x;
    }

    static long settle(String order, int[] turns) {
        long x = order.length();
        for (int i = 0; i < turns[0]; i++) x = x * 22695477 + 1;
        return x;
    }

    public static void main(String[] args) {
        long end = System.currentTimeMillis() + LIFE_MS;
        long sum = 0;
        int[] turns = {100_000};
        while (System.currentTimeMillis() < end) sum ^= settle(300_000) ^ settle("apples", turns);
        System.out.println(sum);
    }
}
