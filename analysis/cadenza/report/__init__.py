# SPDX-License-Identifier: Apache-2.0
"""One page that says who was late, why, and what another run got back."""

from cadenza.report.page import default_output, write_report

__all__ = ["default_output", "write_report"]
