// A service that is busy half of the time: 70 % of it in one method, 30 % in another.
public class Service {
  static volatile long sink;

  static long spendSeventy(int turns) {
    long x = 1;
    for (int i = 0; i < turns; i++) x = (x * 31 + i) % 1000003;
    return x;
  }

  static long spendThirty(int turns) {
    long x = 3;
    for (int i = 0; i < turns; i++) x = (x * 17 + i) % 1000033;
    return x;
  }

  static void serve() {
    for (int i = 0; i < 100; i++) sink += spendSeventy(7000) + spendThirty(3000);
  }

  public static void main(String[] args) throws InterruptedException {
    while (true) {
      long start = System.nanoTime();
      serve();
      Thread.sleep((System.nanoTime() - start) / 1000000);
    }
  }
}
