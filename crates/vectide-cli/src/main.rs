//! vectide cli
#[cfg(feature = "testing")]
mod torture;

fn main() -> std::process::ExitCode {
    #[cfg(feature = "testing")]
    if let Some(code) = torture::run_if_asked() {
        return code;
    }
    std::process::ExitCode::SUCCESS
}
