package trefoil;

import java.net.InetSocketAddress;
import java.util.UUID;

/** The addresses under test, from the environment, and keys of one's own. */
final class Target {
  private Target() {}

  static InetSocketAddress memcached() {
    return address("MEMCACHED_ADDR");
  }

  static InetSocketAddress redis() {
    return address("REDIS_ADDR");
  }

  private static InetSocketAddress address(String name) {
    String address = System.getenv(name);
    if (address == null) {
      throw new IllegalStateException(name + " is not set: HOST:PORT of the server under test");
    }
    int colon = address.lastIndexOf(':');
    return new InetSocketAddress(
        address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
  }

  static String fresh() {
    return "key-" + UUID.randomUUID();
  }

  /** Past what was stored for one second; servers may count whole ones. */
  static void outliveASecond() throws InterruptedException {
    Thread.sleep(1500);
  }
}
