import java.io.IOException;

/** Burns CPU in methods known by name: `early` from the start, `late` too once a byte comes in. Ends at the end of its input. */
public class Hot {
    static volatile boolean more;

    public static void main(String[] args) {
        Thread listener = new Thread(Hot::listen);
        listener.setDaemon(true);
        listener.start();
        long seed = 1;
        // Enough calls for the method to be compiled by itself.
        for (int i = 0; i < 20_000; i++) {
            seed = early(seed);
        }
        System.out.println("ready");
        boolean told = false;
        for (long calls = 0; seed != 0 || calls >= 0; calls++) {
            seed = outer(seed);
            if (more && !told) {
                for (int i = 0; i < 20_000; i++) {
                    seed = late(seed);
                }
                System.out.println("late");
                told = true;
            }
        }
    }

    static long outer(long seed) {
        return more ? late(early(seed)) : early(seed);
    }

    static long early(long seed) {
        for (int i = 0; i < 1_000; i++) {
            seed = seed * 6364136223846793005L + 1442695040888963407L;
        }
        return seed | 1;
    }

    static long late(long seed) {
        for (int i = 0; i < 1_000; i++) {
            seed ^= seed << 13;
            seed ^= seed >>> 7;
            seed ^= seed << 17;
        }
        return seed | 1;
    }

    static void listen() {
        try {
            while (System.in.read() >= 0) {
                more = true;
            }
        } catch (IOException e) {
            // As good as its end.
        }
        System.exit(0);
    }
}
