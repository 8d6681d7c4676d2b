//! Curves as an SVG picture, in the manner of ann-benchmarks: recall across, rate upwards on a logarithmic scale.

use crate::error::{Error, Outcome};
use plotters::prelude::*;
use std::path::Path;

/// One named line of points.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Curve {
    pub(crate) fn of(name: String, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Self { name, points: points.collect() }
    }
}

/// A picture of curves.
pub(crate) struct Plot {
    pub(crate) title: String,
}

impl Plot {
    /// Draws the curves into a file.
    pub(crate) fn write(&self, path: &Path, across: &str, upwards: &str, curves: &[Curve]) -> Outcome {
        self.draw(path, across, upwards, curves)
            .map_err(|e| Error::Write { path: path.to_owned(), source: std::io::Error::other(e.to_string()) })
    }

    fn draw(
        &self,
        path: &Path,
        across: &str,
        upwards: &str,
        curves: &[Curve],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(path, (960, 600)).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let bounds = |of: fn(&(f64, f64)) -> f64| {
            points().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
        };
        let (x, y) = (bounds(|p| p.0), bounds(|p| p.1));
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 20))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x.0..x.1, (y.0 * 0.8..y.1 * 1.25).log_scale())?;
        chart.configure_mesh().x_desc(across).y_desc(upwards).draw()?;
        for (at, curve) in curves.iter().enumerate() {
            let colour = Palette99::pick(at).to_rgba();
            chart
                .draw_series(LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)).point_size(3))?
                .label(curve.name.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_holds_every_curve_by_name() {
        let curve = |name: &str| Curve::of(name.into(), [(0.9, 1_000.0), (0.99, 200.0)].into_iter());
        let file = std::env::temp_dir().join(format!("vectide-plot-{}.svg", std::process::id()));
        let plot = Plot { title: "recall".into() };
        plot.write(&file, "recall", "rate", &[curve("int4"), curve("none")]).expect("drawn");
        let svg = std::fs::read_to_string(&file).expect("there");
        std::fs::remove_file(&file).expect("there");
        assert!(svg.contains("int4") && svg.contains("none") && svg.contains("polyline"));
    }
}
