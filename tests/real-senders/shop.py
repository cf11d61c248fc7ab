"""A service that burns CPU in a known function and sends its profile with Pyroscope's own SDK.

Usage: shop.py ADDRESS SECONDS
"""

import sys
import time

import pyroscope

address, seconds = sys.argv[1], float(sys.argv[2])
pyroscope.configure(application_name="shop.python", server_address=address, tags={"region": "eu"}, sample_rate=100)


def burn_in_python():
    return sum(number * number for number in range(20_000))


end = time.time() + seconds
while time.time() < end:
    burn_in_python()
pyroscope.shutdown()
