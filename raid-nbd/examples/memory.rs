//! Serves an array in memory: `memory ADDRESS [MEMBER_MIB]`, where ADDRESS is `unix:PATH` or
//! `tcp:HOST:PORT`. Ends when standard input does.

use std::error::Error;
use std::io::Read;
use std::time::Duration;

use raid_io::{Array, MemoryOptions};
use raid_nbd::{Server, ServerOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "tcp:127.0.0.1:10809".to_owned());
    let member_mib: u64 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let mut memory = MemoryOptions::default();
    memory.member_bytes = member_mib << 20;
    let array = Array::in_memory(memory)?;
    let options = ServerOptions {
        listeners: vec![address.parse()?],
        description: Some("an array in memory".to_owned()),
        ..ServerOptions::default()
    };
    let server = Server::start(array.clone(), options)?;
    for uri in server.uris() {
        println!("ready {uri}");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let stopped = server.stop(Duration::from_secs(10));
    println!("stopped, {} clients cut off", stopped.cut_off_count);
    array.stop()?;
    Ok(())
}
