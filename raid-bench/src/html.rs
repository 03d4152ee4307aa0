//! The result as one page that needs nothing else: no script, no font, no network. It is XML as
//! well, so that a test can say whether it is well formed.

use std::fmt::Write;

use crate::atto::AttoRow;
use crate::hdtune::HdTune;
use crate::report::{Report, Row};
use crate::stats::{MB, figure, short_size};
use crate::text::{amount, head, ours_to_member, ratios};

const STYLE: &str = include_str!("html/style.css");

/// The whole report as a page.
pub(crate) fn page(report: &Report) -> String {
    let mut page = Page(String::new());
    let title = format!("uraid: {} of {}", report.profile, report.settings.level);
    page.put("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>");
    page.put("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>");
    page.put(&format!("<title>{}</title><style>{STYLE}</style></head><body>\n", escape(&title)));
    page.put(&format!("<h1>{}</h1>\n", escape(&title)));
    page.put(&format!("<p class=\"soft\">{}</p>\n", escape(&report.date)));
    rows(&mut page, report);
    atto(&mut page, report);
    if let Some(tune) = &report.hdtune {
        hdtune(&mut page, tune);
    }
    spool(&mut page, report);
    parity(&mut page, report);
    published(&mut page, report);
    circumstances(&mut page, report);
    page.put("</body></html>\n");
    page.0
}

struct Page(String);

impl Page {
    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn title(&mut self, title: &str, words: &str) {
        self.put(&format!("<h2>{}</h2>\n", escape(title)));
        if !words.is_empty() {
            self.put(&format!("<p class=\"soft\">{}</p>\n", escape(words)));
        }
    }

    /// A bar of `part` of the width, with a mark where one is wanted.
    fn bar(&mut self, part: f64, class: &str, mark: Option<f64>) {
        let width = percent(part);
        let _ = write!(self.0, "<div class=\"well\"><i class=\"{class}\" style=\"width:{width}\">");
        self.put("</i>");
        if let Some(mark) = mark {
            let _ = write!(self.0, "<u style=\"left:{}\"></u>", percent(mark));
        }
        self.put("</div>");
    }

    /// A table; the first line is its head.
    fn table(&mut self, lines: &[Vec<String>]) {
        self.put("<div class=\"scroll\"><table>\n");
        for (index, line) in lines.iter().enumerate() {
            let cell = if index == 0 { "th" } else { "td" };
            self.put("<tr>");
            for text in line {
                let class = if text.len() > 40 { " class=\"wrap\"" } else { "" };
                let _ = write!(self.0, "<{cell}{class}>{}</{cell}>", escape(text));
            }
            self.put("</tr>\n");
        }
        self.put("</table></div>\n");
    }

    fn flags(&mut self, flags: &[String]) {
        for flag in flags {
            let _ = writeln!(self.0, "<div class=\"flag\">! {}</div>", escape(flag));
        }
    }
}

/// A length that stays inside its well, whatever the figure.
fn percent(part: f64) -> String {
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    format!("{:.1}%", part * 100.0)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Not allowed in XML, and of no use here.
            letter if letter.is_control() && letter != '\n' => {}
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// How a ratio looks beside its goal.
fn verdict(row: &Row) -> &'static str {
    match row.goal {
        _ if row.flags.iter().any(|flag| flag.starts_with("unwritten")) => "bad",
        None => "read",
        Some(goal) if row.ratio >= goal => "good",
        Some(goal) if row.ratio >= 0.75 * goal => "poor",
        Some(_) => "bad",
    }
}

fn rows(page: &mut Page, report: &Report) {
    if report.rows.is_empty() {
        return;
    }
    page.title(
        "What the members can do, and what of it the array gives",
        "The full width is the limit, measured in the same run in turns with the array; the mark \
         is \
         the goal.",
    );
    for row in &report.rows {
        let of = format!("{} of {}", amount(row.achieved, row.unit), amount(row.limit, row.unit));
        let _ = write!(
            page.0,
            "<div class=\"row\"><div><b>{}</b><span>{} · <b>{:.2}</b></span></div>",
            escape(row.pattern),
            escape(&of),
            row.ratio,
        );
        page.bar(row.ratio, verdict(row), row.goal);
        let mut words = format!("limit: {}", row.limit_is);
        if let (Some(same), Some(ratio)) = (row.same_io, row.same_io_ratio) {
            let same = amount(same, row.unit);
            words += &format!("; the same member I/O, raw, at once: {same}, ratio {ratio:.2}");
        }
        if let Some(walking) = row.walking {
            words += &format!("; while it walked {}", amount(walking, row.unit));
        }
        if let Some(durable) = row.durable {
            words += &format!("; durable {}", amount(durable, row.unit));
        }
        let _ = writeln!(page.0, "<small>{}</small>", escape(&words));
        page.flags(&row.flags);
        page.put("</div>\n");
    }
    let mut lines = vec![
        ["pattern", "depth", "reached", "p50 us", "p99 us", "p99.9 us", "spread", "CPU s/GB"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for row in report.rows.iter().filter(|row| row.p50_us > 0.0) {
        lines.push(vec![
            row.pattern.to_owned(),
            row.depth.to_string(),
            format!("{:.1}", row.depth_achieved),
            figure(row.p50_us),
            figure(row.p99_us),
            figure(row.p999_us),
            format!("{:.0} %", row.spread * 100.0),
            format!("{:.2}", row.cpu_seconds_per_gb),
        ]);
    }
    if lines.len() > 1 {
        page.put("<h3>Latency, depth and processor time</h3>\n");
        page.table(&lines);
    }
}

fn atto(page: &mut Page, report: &Report) {
    if report.atto.is_empty() {
        return;
    }
    page.title(
        "ATTO: transfers of growing size",
        "256 MiB, past the page cache, four transfers under way. MB/s of 10^6 bytes; all charts \
         have \
         the same scale.",
    );
    page.put("<p class=\"key\"><i class=\"write\"></i>write<i class=\"read\"></i>read</p>\n");
    let most = report.atto.iter().map(|row| row.write.max(row.read)).fold(1.0, f64::max);
    let same = |a: &AttoRow, b: &AttoRow| (&a.target, &a.level) == (&b.target, &b.level);
    for rows in report.atto.chunk_by(same) {
        let name = match rows[0].target.as_str() {
            "member" => "one raw member".to_owned(),
            target => format!("{} ({target})", rows[0].level),
        };
        let _ = writeln!(page.0, "<h3>{}</h3>", escape(&name));
        for row in rows {
            let _ = write!(page.0, "<div class=\"pair\"><span>{}</span>", short_size(row.bytes));
            page.bar(row.write / most, "write", None);
            let _ = write!(page.0, "<span>{}</span><span></span>", figure(row.write / MB));
            page.bar(row.read / most, "read", None);
            let _ = writeln!(page.0, "<span>{}</span></div>", figure(row.read / MB));
        }
        let mut flags: Vec<String> = Vec::new();
        for row in rows {
            let size = short_size(row.bytes);
            flags.extend(row.flags.iter().map(|flag| format!("{size}: {flag}")));
        }
        if !flags.is_empty() {
            let _ = write!(page.0, "<details><summary>{} doubts</summary>", flags.len());
            page.flags(&flags);
            page.put("</details>\n");
        }
    }
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
/// Room for the figures at the left and right.
const MARGIN: f64 = 52.0;

fn hdtune(page: &mut Page, tune: &HdTune) {
    page.title(
        "HD Tune: transfer curve and access times",
        "Line, left scale: MB/s over the array. Dots, right scale: milliseconds of single 4 KiB \
         reads, one at a time.",
    );
    let most = nice(tune.transfer.max / MB);
    // A few slow ones would press all others flat: they lie at the edge.
    let mut millis: Vec<f64> = tune.dots.iter().map(|(_, millis)| *millis).collect();
    millis.sort_by(f64::total_cmp);
    let usual = millis.get(millis.len() * 95 / 100).copied().unwrap_or(1.0);
    let slowest = nice(usual * 1.5);
    let x = |part: f64| MARGIN + part * (WIDTH - 2.0 * MARGIN);
    let y = |part: f64| HEIGHT - 30.0 - part.clamp(0.0, 1.0) * (HEIGHT - 45.0);
    let _ = writeln!(
        page.0,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"transfer curve\">"
    );
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let (left, right, at) = (x(0.0), x(1.0), y(part));
        let _ = writeln!(
            page.0,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            at + 5.0,
            figure(most * part),
            right + 6.0,
            at + 5.0,
            figure(slowest * part),
        );
    }
    for (place, millis) in &tune.dots {
        let (x, y) = (x(*place), y(millis / slowest));
        let _ = writeln!(page.0, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
    }
    let point = |(place, rate): &(f64, f64)| format!("{:.1},{:.1}", x(*place), y(rate / MB / most));
    let points: Vec<String> = tune.curve.iter().map(point).collect();
    let _ = writeln!(page.0, "<polyline class=\"curve\" points=\"{}\"/>", points.join(" "));
    let _ = writeln!(
        page.0,
        "<text x=\"{:.1}\" y=\"{:.1}\">0</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}\
         </text></svg>",
        x(0.0),
        HEIGHT - 6.0,
        x(1.0),
        HEIGHT - 6.0,
        short_size(tune.size_bytes),
    );
    let (transfer, access) = (&tune.transfer, &tune.access_ms);
    let _ = writeln!(
        page.0,
        "<p>Transfer: least {}, median {}, most {} MB/s. Access: median {:.3} ms, most {:.3} \
         ms.</p>",
        figure(transfer.min / MB),
        figure(transfer.median / MB),
        figure(transfer.max / MB),
        access.median,
        access.max,
    );
    page.flags(&tune.flags);
    let mut lines = vec![
        ["random access", "", "IOPS", "average ms", "p99 ms", "MB/s"].map(str::to_owned).to_vec(),
    ];
    for access in &tune.random {
        lines.push(vec![
            access.what.to_owned(),
            access.kind.to_owned(),
            figure(access.iops),
            format!("{:.3}", access.average_ms),
            format!("{:.3}", access.p99_ms),
            figure(access.bytes_a_second / MB),
        ]);
    }
    page.table(&lines);
}

/// The next number above that looks well on a scale.
fn nice(value: f64) -> f64 {
    if !(value > 0.0 && value.is_finite()) {
        return 1.0;
    }
    let power = 10.0_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(10.0 * power)
}

fn spool(page: &mut Page, report: &Report) {
    let Some(first) = report.spool.first() else { return };
    let words = format!("Files of 8 KiB, one at a time; {}. MB/s of 10^6 bytes.", first.how);
    page.title("News spool: very many small files", &words);
    let most = report.spool.iter().map(|row| row.bytes_a_second).fold(1.0, f64::max);
    for row in &report.spool {
        let files = match row.files_a_second {
            0.0 => String::new(),
            files => format!("{} files/s, ", figure(files)),
        };
        let _ = write!(
            page.0,
            "<div class=\"row\"><div><b>{}, {}</b><span>{files}{} MB/s</span></div>",
            escape(&row.level),
            row.order,
            figure(row.bytes_a_second / MB),
        );
        let class = if row.target == "member" { "theirs" } else { "read" };
        page.bar(row.bytes_a_second / most, class, None);
        page.flags(&row.flags);
        page.put("</div>\n");
    }
}

fn parity(page: &mut Page, report: &Report) {
    if report.parity.is_empty() {
        return;
    }
    page.title("Parity", "One core; the full width is what moving the same bytes would take.");
    for row in &report.parity {
        let (case, kernel) = (escape(&row.case), row.kernel);
        let figures = format!("{} of {} GB/s", figure(row.gb_s), figure(row.limit_gb_s));
        let _ = write!(
            page.0,
            "<div class=\"row\"><div><b>{case}, {kernel}</b><span>{figures} · \
             <b>{:.2}</b></span></div>",
            row.ratio
        );
        page.bar(row.ratio, "good", Some(0.95));
        page.put("</div>\n");
    }
}

fn published(page: &mut Page, report: &Report) {
    page.title(
        "Published by others, on other hardware",
        "Nothing here was run by this program. The full width is what so many members could give; \
         the bar is the ratio to one member of the same array in the same test. Solid bars are \
         this run.",
    );
    for (what, ratio, ideal) in ours_to_member(report) {
        let words = format!("this run, {}: {what}", report.settings.level);
        ratio_bar(page, &words, ratio, ideal, "good");
    }
    for (card, figure) in ratios(&report.published) {
        let words = format!("{}, {}: {}", card.system, card.level, figure.what);
        let (ratio, ideal) = (figure.ratio.unwrap_or(0.0), figure.ideal.unwrap_or(1.0));
        ratio_bar(page, &words, ratio, ideal, "theirs");
    }
    page.put("<details><summary>All published figures, with their sources</summary>\n");
    let mut lines = vec![
        ["system", "what", "figure", "ratio", "source", "hardware", "caveat"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for card in &report.published {
        for one in &card.figures {
            lines.push(vec![
                format!("{}, {}", card.system, card.level),
                one.what.clone(),
                format!("{} {}", figure(one.value), one.unit),
                one.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                format!("{}, {}", card.source, card.date),
                card.hardware.clone(),
                card.caveat.clone(),
            ]);
        }
    }
    page.table(&lines);
    for card in report.published.iter().filter(|card| !card.atto_kb_s.is_empty()) {
        let _ = writeln!(page.0, "<h3>ATTO of a {}, as published, KB/s</h3>", escape(&card.system));
        let mut lines = vec![["transfer KiB", "write", "read"].map(str::to_owned).to_vec()];
        for line in &card.atto_kb_s {
            let kib = line.kib.to_string();
            lines.push(vec![kib, figure(line.write), figure(line.read)]);
        }
        page.table(&lines);
        let _ = writeln!(page.0, "<p class=\"soft\">{}</p>", escape(&card.caveat));
    }
    page.put("</details>\n");
}

fn ratio_bar(page: &mut Page, words: &str, ratio: f64, ideal: f64, class: &str) {
    let _ = write!(
        page.0,
        "<div class=\"row\"><div><span>{}</span><span><b>{ratio:.2}</b> of {ideal:.0}</span></div>",
        escape(words)
    );
    page.bar(ratio / ideal.max(1e-9), class, None);
    page.put("</div>\n");
}

fn circumstances(page: &mut Page, report: &Report) {
    page.title("What the figures depend on", "");
    for line in head(report) {
        let _ = writeln!(page.0, "<p><code>{}</code></p>", escape(&line));
    }
    for note in &report.notes {
        let _ = writeln!(page.0, "<p>{}</p>", escape(note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Bench;
    use crate::report::Run;

    fn report() -> Report {
        let mut run = Run::begin("compare", &Bench::of(&[]));
        run.report.command = "raid-bench \"<&>\u{7}".to_owned();
        run.report.notes.push("a < b & c".to_owned());
        run.report.published = crate::cards::all().expect("the data file");
        run.report.rows.push(crate::report::sample_row());
        run.report.atto.push(AttoRow {
            target: "ours".into(),
            level: "raid5".into(),
            members: 5,
            bytes: 512,
            write: 1e6,
            write_spread: 0.1,
            write_durable: 5e5,
            read: f64::NAN,
            read_spread: 0.1,
            samples: 5,
            flags: vec!["short: <&>".into()],
        });
        run.report.hdtune = Some(HdTune {
            target: "ours".into(),
            level: "raid5".into(),
            members: 5,
            size_bytes: 1 << 30,
            random: Vec::new(),
            curve: vec![(0.0, 1e9), (0.5, 2e9), (1.0, 0.0)],
            transfer: Default::default(),
            dots: vec![(0.2, 0.1), (0.9, 1e6)],
            access_ms: Default::default(),
            flags: Vec::new(),
        });
        run.end()
    }

    /// A page is XML: every element is closed, every text escaped.
    #[test]
    fn the_page_is_well_formed_and_needs_nothing_from_elsewhere() {
        let page = page(&report());
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let parsed = roxmltree::Document::parse_with_options(&page, options);
        let document = parsed.unwrap_or_else(|error| panic!("{error}\n{page}"));
        let names = |name: &str| document.descendants().filter(|n| n.has_tag_name(name)).count();
        assert_eq!((names("svg"), names("polyline"), names("circle")), (1, 1, 2));
        assert_eq!((names("script"), names("link"), names("img")), (0, 0, 0));
        assert!(names("h2") >= 5);
        // Sources are named as text; nothing is fetched.
        assert!(!page.contains("url(") && !page.contains("src=") && !page.contains("href="));
        assert!(page.contains("raid-bench &quot;&lt;&amp;&gt;"));
        assert!(page.contains("prefers-color-scheme:dark") && page.contains("viewport"));
    }

    /// A figure that is no number, or above its limit, stays inside the drawing.
    #[test]
    fn bars_stay_inside() {
        assert_eq!(percent(1.7), "100.0%");
        assert_eq!(percent(-1.0), "0.0%");
        assert_eq!(percent(f64::NAN), "0.0%");
        assert_eq!(percent(0.123), "12.3%");
        for (value, above) in
            [(0.0, 1.0), (0.3, 0.4), (1.0, 1.0), (870.0, 1000.0), (1100.0, 2000.0)]
        {
            assert!((nice(value) - above).abs() < 1e-9, "{value}");
        }
    }
}
