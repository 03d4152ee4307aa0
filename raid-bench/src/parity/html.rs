//! The result as one page that needs nothing else: bars beside the limit, by operation.

use std::fmt::Write;

use super::report::{Report, Row};
use super::text::{LEGEND, cases, head, limits, operations, shape};

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;max-width:60em;margin:2em auto;\
padding:0 1em;color:#222;background:#fff}h2{margin:1.6em 0 .3em}svg{display:block;width:100%}\
svg text{font:12px system-ui,sans-serif;fill:#222}td,th{padding:0 .8em 0 0;text-align:left}\
td+td{text-align:right}.case{font-weight:600}.read{stroke:#999;stroke-dasharray:3 3}\
.move{stroke:#c22;stroke-width:2}@media(prefers-color-scheme:dark){body{color:#ddd;\
background:#181818}svg text{fill:#ddd}}";

/// Colours of bars, by kernel from the best on.
const COLOURS: [&str; 8] =
    ["#2a6fdb", "#4c9ad8", "#3aa17e", "#7fb069", "#c9a227", "#d98e4a", "#8a8a8a", "#9b5fc0"];

const WIDTH: f64 = 860.0;
const NAME_WIDTH: f64 = 110.0;
const FIGURE_WIDTH: f64 = 150.0;
const BAR_HEIGHT: f64 = 14.0;
const TITLE_HEIGHT: f64 = 24.0;

/// The whole report as a page.
pub(super) fn page(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>uraid: parity</title><style>{STYLE}</style></head><body>\n<h1>Parity kernels</h1>\n"
    );
    for line in head(report).iter().map(String::as_str).chain(LEGEND) {
        // Writing to a string does not fail.
        let _ = writeln!(page, "<p>{}</p>", escape(line));
    }
    page += "<p>Grey dashes: read. Red: move. Figures: GB/s, ratio to move, spread.</p>\n";
    page += "<h2>Limits of the machine, GB/s</h2>\n<table>\n";
    for (name, gb_s) in limits(report) {
        let _ = writeln!(page, "<tr><td>{name}</td><td>{gb_s:.1}</td></tr>");
    }
    page += "</table>\n";
    for rows in operations(&report.rows) {
        let _ = writeln!(page, "<h2>{}</h2>", rows[0].op);
        cases(rows).for_each(|rows| chart(&mut page, rows));
    }
    page += "</body></html>\n";
    page
}

/// One case: a bar for each kernel, and lines where the limits are.
fn chart(page: &mut String, rows: &[Row]) {
    let case = &rows[0];
    let height = TITLE_HEIGHT + rows.len() as f64 * BAR_HEIGHT;
    let fastest =
        rows.iter().map(|row| row.gb_s).fold(case.limit_gb_s.max(case.read_gb_s), f64::max);
    let room = WIDTH - NAME_WIDTH - FIGURE_WIDTH;
    let length = |gb_s: f64| if fastest > 0.0 { gb_s / fastest * room } else { 0.0 };
    let _ = writeln!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"><text class=\"case\" x=\"0\" y=\"16\">\
         {}</text>",
        shape(case)
    );
    for (row, (index, colour)) in rows.iter().zip(COLOURS.iter().cycle().enumerate()) {
        let y = TITLE_HEIGHT + index as f64 * BAR_HEIGHT;
        let (text_y, bar_height) = (y + 11.0, BAR_HEIGHT - 3.0);
        let _ = writeln!(
            page,
            "<text x=\"0\" y=\"{text_y}\">{}</text><rect x=\"{NAME_WIDTH}\" y=\"{y}\" \
             width=\"{:.1}\" height=\"{bar_height}\" fill=\"{colour}\"/><text x=\"{:.1}\" \
             y=\"{text_y}\">{:.1} · {:.2} · ±{:.0} %</text>",
            row.kernel,
            length(row.gb_s),
            WIDTH - FIGURE_WIDTH + 10.0,
            row.gb_s,
            row.limit_ratio,
            row.spread * 100.0,
        );
    }
    for (class, gb_s) in [("read", case.read_gb_s), ("move", case.limit_gb_s)] {
        let x = NAME_WIDTH + length(gb_s);
        let _ = writeln!(
            page,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TITLE_HEIGHT}\" \
             y2=\"{height}\"/>"
        );
    }
    *page += "</svg>\n";
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
