# SPDX-License-Identifier: Apache-2.0
"""Messages on the links between ranks: bytes, rates, slow links."""
