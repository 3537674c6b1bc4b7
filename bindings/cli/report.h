// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the benchmarks measured, as a page with plots and tables.
#pragma once

#include <string>
#include <vector>

#include "output.h"
#include "plot.h"

namespace gpumem::cli {

// Throws with the reason if the document is not what gpumem bench writes. docs/performance.md describes it.
void check_results(const Json& results, const std::string& source);
// The same for what tests/bench/peers.py writes.
void check_peers(const Json& peers, const std::string& source);

// The plots for which there are rows.
std::vector<Plot> plots_of(const Json& results);

// One file that needs nothing else: no script, no style sheet, no network.
std::string html_report(const Json& results);

// The parts of such a page. What is given is HTML, but for titles and names of columns.
std::string html_page(const std::string& title, const std::string& body);
std::string cell(const std::string& text, const char* kind = "");
std::string header_cells(const std::vector<std::string>& names);
// The beginning of a table that scrolls by itself; "</tbody></table></div>" ends it.
std::string html_table(const std::string& label, const std::vector<std::string>& columns);

}  // namespace gpumem::cli
