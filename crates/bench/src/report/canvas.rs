//! One drawing, two files. PNG text is set in a font that the crate carries, so
//! that a plot needs no font on the machine; SVG names a generic family.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plotters::coord::types::RangedCoordf64;
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::ReportError;

const FONT: &[u8] = include_bytes!("../../data/roboto-ascii.ttf");
pub(super) const FONT_FAMILY: &str = "sans-serif";
const SIZE: (u32, u32) = (960, 540);

/// Told apart by people who do not see all colours.
pub(super) const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
];
pub(super) const ALARM: RGBColor = RGBColor(200, 30, 30);

/// Something that can be drawn on any backend.
pub trait Plot {
    /// Width and height, in pixels.
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    /// Draws on an empty white area.
    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>>;
}

/// Points, the line through them, and its name for the [`legend`].
pub(super) fn line<'a, DB: DrawingBackend + 'a>(
    chart: &mut ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    name: &str,
    points: impl Iterator<Item = (f64, f64)> + Clone,
    color: RGBColor,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let dots = points.clone();
    chart.draw_series(dots.map(|at| Circle::new(at, 3, color.filled())))?;
    chart
        .draw_series(LineSeries::new(points, color.stroke_width(2)))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(3)));
    Ok(())
}

/// The names of what was drawn.
pub(super) fn legend<'a, DB: DrawingBackend + 'a, CT: CoordTranslate>(
    chart: &mut ChartContext<'a, DB, CT>,
    at: SeriesLabelPosition,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    chart
        .configure_series_labels()
        .position(at)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT_FAMILY, 15))
        .draw()
}

/// Where a plot went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedPlot {
    /// The drawing as SVG.
    pub svg: PathBuf,
    /// The same as PNG.
    pub png: PathBuf,
}

/// Writes `<stem>.svg` and `<stem>.png`.
pub fn save(plot: &impl Plot, stem: &Path) -> Result<SavedPlot, ReportError> {
    load_font();
    let (svg, png) = (with_extension(stem, "svg"), with_extension(stem, "png"));
    std::fs::write(&svg, draw_svg(plot, &svg)?).map_err(|e| write_error(&svg, e))?;
    let pixels = draw_pixels(plot, &png)?;
    write_png(&png, plot.size(), &pixels).map_err(|e| write_error(&png, e))?;
    Ok(SavedPlot { svg, png })
}

fn load_font() {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        // A font that cannot be read shows as a drawing error, in its words.
        let _ = register_font(FONT_FAMILY, FontStyle::Normal, FONT);
    });
}

fn draw_svg(plot: &impl Plot, path: &Path) -> Result<String, ReportError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, plot.size()).into_drawing_area();
    draw_on(plot, &area).map_err(|e| draw_error(path, e))?;
    drop(area);
    Ok(svg)
}

fn draw_pixels(plot: &impl Plot, path: &Path) -> Result<Vec<u8>, ReportError> {
    let size = plot.size();
    let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
    let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
    draw_on(plot, &area).map_err(|e| draw_error(path, e))?;
    drop(area);
    Ok(pixels)
}

fn draw_on<DB: DrawingBackend>(
    plot: &impl Plot,
    area: &DrawingArea<DB, Shift>,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    area.fill(&WHITE)?;
    plot.draw(area)?;
    area.present()
}

fn write_png(path: &Path, size: (u32, u32), pixels: &[u8]) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    let mut encoder = png::Encoder::new(file, size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(io::Error::other)?;
    writer.write_image_data(pixels).map_err(io::Error::other)?;
    writer.finish().map_err(io::Error::other)
}

/// Appends, so that a stem with a dot in it keeps all of its name.
fn with_extension(stem: &Path, extension: &str) -> PathBuf {
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn write_error(path: &Path, source: io::Error) -> ReportError {
    ReportError::Write {
        path: path.display().to_string(),
        source,
    }
}

fn draw_error(path: &Path, problem: impl std::fmt::Display) -> ReportError {
    ReportError::Draw {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}

/// A logarithmic axis around `values`: whole decades, at least one; positive
/// values only.
pub(super) fn decades(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values
        .filter(|v| v.is_finite() && *v > 0.0)
        .fold((f64::MAX, f64::MIN), |(low, high), v| {
            (low.min(v), high.max(v))
        });
    if low > high {
        return 1.0..10.0;
    }
    let start = 10f64.powf(low.log10().floor());
    let end = 10f64.powf(high.log10().ceil());
    start..end.max(start * 10.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Draws both files and gives the SVG's text and the PNG's share of ink.
    pub(in crate::report) fn drawn(plot: &impl Plot) -> (String, f64) {
        let dir = tempfile::tempdir().unwrap();
        let saved = save(plot, &dir.path().join("plot.v1")).unwrap();
        assert!(saved.png.ends_with("plot.v1.png"));
        let svg = std::fs::read_to_string(&saved.svg).unwrap();
        let decoder = png::Decoder::new(io::BufReader::new(File::open(&saved.png).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        let size = plot.size();
        assert_eq!((info.width, info.height), size);
        let inked = pixels.as_chunks::<3>().0.iter().filter(|p| **p != [255; 3]);
        let ink = inked.count() as f64 / f64::from(size.0 * size.1);
        (svg, ink)
    }

    #[test]
    fn axes_are_whole_decades() {
        assert_eq!(decades([500.0, 70_000.0].into_iter()), 100.0..100_000.0);
        assert_eq!(decades([100.0].into_iter()), 100.0..1_000.0);
        assert_eq!(decades([0.0, f64::NAN].into_iter()), 1.0..10.0);
    }

    #[test]
    fn a_path_that_is_none_is_an_error() {
        let bars = crate::report::LatencyBars::new("empty");
        let error = save(&bars, Path::new("/nowhere/plot")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/plot.svg"), "{error}");
    }
}
