//! Speed against context, as a picture for a page that is light or dark.

use std::fmt::Write;
use std::path::Path;

use super::Report;

const WIDTH: f64 = 760.0;
/// Of one panel, its heading and labels included.
const PANEL: f64 = 270.0;
const TOP: f64 = 64.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const PLOT: f64 = 190.0;

/// Lines take the colour of the text around them; blue and orange are readable on white and on black.
const STYLE: &str = "\
:root { color: #24292f; }
@media (prefers-color-scheme: dark) { :root { color: #d5dbe3; } }
text { font: 13px system-ui, sans-serif; fill: currentColor; }
.title { font-size: 16px; font-weight: 600; }
.faint { opacity: 0.7; }
.axis { stroke: currentColor; stroke-width: 1; fill: none; }
.grid { stroke: currentColor; stroke-width: 1; opacity: 0.15; }
.line { stroke: #3b82f6; stroke-width: 2; fill: none; }
.best { fill: #3b82f6; }
.median { stroke: #3b82f6; stroke-width: 1.5; fill: none; }
.limit { stroke: #e08a1e; stroke-width: 1.5; stroke-dasharray: 6 4; }";

/// Where values of an axis go: from 0 to a round number, with round steps.
struct Axis {
    step: f64,
    end: f64,
}

impl Axis {
    /// Holds values up to `largest`, in about `steps` steps of 1, 2 or 5 times a power of ten.
    fn new(largest: f64, steps: f64) -> Self {
        let rough = largest.max(1e-6) / steps;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|f| f * power).into_iter().find(|s| *s >= rough * 0.999);
        let step = step.unwrap_or(10.0 * power);
        Self { step, end: step * (largest.max(1e-6) / step - 1e-9).ceil() }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let step = self.step;
        (0..=(self.end / step).round() as usize).map(move |i| i as f64 * step)
    }

    /// No more digits than the step has.
    fn label(&self, value: f64) -> String {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        format!("{value:.digits$}")
    }
}

/// A point: context, and the value of the best round and of the median.
type Point = (f64, f64, f64);

struct Panel<'a> {
    heading: &'a str,
    top: f64,
    points: &'a [Point],
    /// A line across, with its name.
    limit: Option<(f64, &'a str)>,
}

impl Panel<'_> {
    fn draw(&self, x: &Axis, out: &mut String) -> std::fmt::Result {
        let largest =
            self.points.iter().map(|p| p.1.max(p.2)).chain(self.limit.map(|l| l.0)).fold(0.0, f64::max);
        let y = Axis::new(largest, 4.0);
        let (top, bottom) = (self.top + 34.0, self.top + 34.0 + PLOT);
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let at_x = |value: f64| left + (right - left) * value / x.end;
        let at_y = |value: f64| bottom - PLOT * value / y.end;

        writeln!(out, "<text x=\"{left}\" y=\"{}\">{}</text>", self.top + 18.0, self.heading)?;
        for tick in y.ticks() {
            let (at, label) = (at_y(tick), y.label(tick));
            writeln!(out, "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/>")?;
            writeln!(
                out,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                left - 8.0,
                at + 4.5
            )?;
        }
        for tick in x.ticks() {
            let (at, label) = (at_x(tick), x.label(tick));
            writeln!(out, "<path class=\"axis\" d=\"M{at:.1} {bottom}v5\"/>")?;
            writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 20.0
            )?;
        }
        writeln!(out, "<path class=\"axis\" d=\"M{left} {top}V{bottom}H{right}\"/>")?;
        if let Some((value, name)) = self.limit {
            let at = at_y(value);
            writeln!(out, "<path class=\"limit\" d=\"M{left} {at:.1}H{right}\"/>")?;
            writeln!(out, "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>", at - 6.0)?;
        }
        let path: Vec<String> =
            self.points.iter().map(|(c, best, _)| format!("{:.1} {:.1}", at_x(*c), at_y(*best))).collect();
        writeln!(out, "<path class=\"line\" d=\"M{}\"/>", path.join("L"))?;
        for (context, best, median) in self.points {
            let at = at_x(*context);
            writeln!(out, "<circle class=\"best\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"4\"/>", at_y(*best))?;
            writeln!(out, "<circle class=\"median\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"4\"/>", at_y(*median))?;
        }
        Ok(())
    }
}

fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    // XML has no way to write the others.
    escaped.chars().filter(|c| !c.is_control()).collect()
}

/// Pictures are shown to others, whom the folders of this machine do not concern.
fn title(model: &str) -> String {
    let path = Path::new(model);
    let name = path.file_name().filter(|_| path.is_absolute()).and_then(|name| name.to_str());
    escape(name.unwrap_or(model))
}

fn picture(report: &Report, out: &mut String) -> std::fmt::Result {
    let curve = report.curve();
    let x = Axis::new(curve.last().map_or(1.0, |(context, _)| *context as f64).max(1.0), 6.0);
    let speed: Vec<Point> = curve.iter().map(|(c, s)| (*c as f64, s.best(), s.median())).collect();
    let ms = |speed: f64| 1000.0 / speed.max(1e-9);
    let time: Vec<Point> = speed.iter().map(|(c, best, median)| (*c, ms(*best), ms(*median))).collect();
    // A limit far away would press the curve to the ground.
    let fastest = speed.iter().map(|p| p.1).fold(0.0, f64::max);
    let near = report.limit().filter(|limit| (0.5 * fastest..3.0 * fastest).contains(limit));
    let limit = near.map(|limit| (limit, "limit of the memory's bandwidth"));

    let height = TOP + 2.0 * PANEL + 30.0;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">"
    )?;
    writeln!(out, "<title>Decode speed by context: {}</title>", title(&report.model))?;
    writeln!(out, "<style>\n{STYLE}\n</style>")?;
    writeln!(out, "<text class=\"title\" x=\"{LEFT}\" y=\"28\">{}</text>", title(&report.model))?;
    writeln!(out, "<text class=\"faint\" x=\"{LEFT}\" y=\"50\">{}</text>", escape(&report.backend))?;
    Panel { heading: "decoded tokens per second", top: TOP, points: &speed, limit }.draw(&x, out)?;
    Panel { heading: "milliseconds per token", top: TOP + PANEL, points: &time, limit: None }
        .draw(&x, out)?;
    let (right, bottom) = (WIDTH - RIGHT, height - 16.0);
    writeln!(out, "<text x=\"{LEFT}\" y=\"{bottom}\">context in tokens</text>")?;
    writeln!(out, "<circle class=\"best\" cx=\"{}\" cy=\"{}\" r=\"4\"/>", right - 166.0, bottom - 4.5)?;
    writeln!(out, "<text x=\"{}\" y=\"{bottom}\">best</text>", right - 156.0)?;
    writeln!(out, "<circle class=\"median\" cx=\"{}\" cy=\"{}\" r=\"4\"/>", right - 106.0, bottom - 4.5)?;
    writeln!(out, "<text x=\"{}\" y=\"{bottom}\">median of {}</text>", right - 96.0, report.work.repeat)?;
    writeln!(out, "</svg>")
}

/// The picture as text.
pub fn draw(report: &Report) -> String {
    let mut out = String::new();
    // A string takes whatever is written.
    let _ = picture(report, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let labels = |largest: f64, steps: f64| {
            let axis = Axis::new(largest, steps);
            axis.ticks().map(|tick| axis.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(4096.0, 6.0), ["0", "1000", "2000", "3000", "4000", "5000"]);
        assert_eq!(labels(47.3, 4.0), ["0", "20", "40", "60"]);
        assert_eq!(labels(0.83, 4.0), ["0.0", "0.5", "1.0"]);
        assert_eq!(labels(4.0, 4.0), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(1.0, 6.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert!(labels(0.0, 4.0).len() > 1);
    }

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(escape("a<b>&\"c\"\n"), "a&lt;b&gt;&amp;&quot;c&quot;");
        assert_eq!(title("org/name"), "org/name");
        #[cfg(unix)]
        assert_eq!(title("/somewhere/name"), "name");
    }
}
